"""Grafana dashboards as code: `python -m dashboards.build` writes charts/llm-ray/files/dashboards."""
