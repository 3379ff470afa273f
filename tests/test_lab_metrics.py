"""The lab's Prometheus scrapes as the chart's monitors say; its adapter serves what the chart's autoscalers read."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ci.lab.addons import prometheus, prometheus_adapter
from ci.prometheus import binary

from tests.support.chart import Manifest, render

MONITORED = {"monitoring": {"podMonitor": {"enabled": True}}}
SELECTIONS = ("keep", "drop")


@pytest.fixture(scope="module")
def endpoints() -> list[Manifest]:
    return [one for monitor in render(MONITORED).all("PodMonitor") for one in monitor["spec"]["podMetricsEndpoints"]]


def as_scraped(relabeling: Manifest) -> Manifest:
    """A relabeling of a monitor in Prometheus' own spelling."""
    return {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in relabeling.items()}


def job(name: str) -> Any:
    [found] = [one for one in prometheus.config()["scrape_configs"] if one["job_name"] == name]
    return found


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(json.dumps(prometheus.config()))
    done = subprocess.run([binary("promtool"), "check", "config", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_series_get_the_labels_that_the_charts_monitors_give(endpoints: list[Manifest]) -> None:
    ours = [one for one in prometheus.releases() if one["action"] not in SELECTIONS and "endpoint" not in one.values()]
    for endpoint in endpoints:
        theirs = [as_scraped(one) for one in endpoint["relabelings"]]
        assert [one for one in theirs if one["action"] not in SELECTIONS] == ours
        assert job("llm-ray")["metric_relabel_configs"] == [as_scraped(one) for one in endpoint["metricRelabelings"]]


def test_the_ports_and_pods_of_the_charts_monitors_are_scraped(endpoints: list[Manifest]) -> None:
    assert {endpoint["port"] for endpoint in endpoints} == set(prometheus.PORTS)
    kept = {
        one["source_labels"][0]: one["regex"] for one in job("llm-ray")["relabel_configs"] if one["action"] == "keep"
    }
    for monitor in render(MONITORED).all("PodMonitor"):
        for label, value in monitor["spec"]["selector"]["matchLabels"].items():
            pattern = kept.get(f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', label)}", ".*")
            assert re.fullmatch(pattern, value)
        assert "__meta_kubernetes_pod_label_llm_ray_io_name" in kept


def test_the_adapter_computes_what_the_chart_asks_keda_for() -> None:
    keda = {"provider": "keda", "keda": {"serverAddress": "http://prometheus.monitoring.svc:9090"}}
    scaled = render({"autoscaling": {"mode": "hpa", "hpa": keda}}).find("ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    [rule] = [one for one in prometheus_adapter.rules()["externalRules"] if one["name"] == {"as": "llm_ray_requests"}]
    matchers = 'namespace="serving",llm_ray_name="demo-llm-ray"'
    assert rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers) == query


def test_the_adapter_serves_the_metric_that_the_charts_autoscaler_reads() -> None:
    autoscaler = render({"autoscaling": {"mode": "hpa"}}).find("HorizontalPodAutoscaler")
    [metric] = autoscaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == prometheus_adapter.METRIC
