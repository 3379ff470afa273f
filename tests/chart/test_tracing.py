"""Traces and log format: the environment and the Serve config agree, and Ray's own schema takes them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ray.serve.schema import LoggingConfig, TracingConfig

from tests.support import kuberay
from tests.support.chart import Manifest, Objects, render

ENDPOINT = "http://otel-collector.monitoring.svc:4318"


def traced(**tracing: Any) -> Objects:
    values = {"workers": {"a": {}, "b": {}}}
    return render(values | {"monitoring": {"tracing": {"enabled": True, "endpoint": ENDPOINT} | tracing}})


def owner(objects: Objects) -> Manifest:
    return next(item for item in objects if item["kind"] in ("RayCluster", "RayService"))


def serve_config(objects: Objects) -> Manifest:
    return kuberay.serve_config(owner(objects), objects.all("ConfigMap"))


def ray_environments(objects: Objects) -> list[list[Manifest]]:
    pods = kuberay.kinds_of_pods(owner(objects))
    containers = [one for pod in pods for one in pod.spec["containers"] if one["name"].startswith("ray-")]
    assert len(containers) == len(pods)
    return [one["env"] for one in containers]


def test_no_trace_leaves_a_default_release():
    objects = render()
    assert "tracing_config" not in serve_config(objects) or not serve_config(objects)["tracing_config"]["enabled"]
    for env in ray_environments(objects):
        assert not [entry["name"] for entry in env if entry["name"].startswith("OTEL_") or "TRACING" in entry["name"]]


def test_the_proxies_environment_and_the_serve_config_say_the_same():
    objects = traced(samplingRatio=0.25)
    tracing = TracingConfig(**serve_config(objects)["tracing_config"])
    assert (tracing.enabled, tracing.exporter_import_path) == (True, "llm_ray.tracing:exporter")
    for env in ray_environments(objects):
        values = {entry["name"]: entry.get("value") for entry in env}
        assert values["RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH"] == tracing.exporter_import_path
        assert float(values["RAY_SERVE_TRACING_SAMPLING_RATIO"]) == tracing.sampling_ratio == 0.25
        assert values["OTEL_EXPORTER_OTLP_ENDPOINT"] == ENDPOINT


@pytest.mark.parametrize("ratio", [0, 0.00001, 1])
def test_any_share_of_requests_reaches_serve_as_a_number(ratio: float):
    objects = traced(samplingRatio=ratio)
    assert TracingConfig(**serve_config(objects)["tracing_config"]).sampling_ratio == ratio
    for env in ray_environments(objects):
        (text,) = [entry["value"] for entry in env if entry["name"] == "RAY_SERVE_TRACING_SAMPLING_RATIO"]
        assert float(text) == ratio


def test_spans_name_their_pod_by_variables_that_kubernetes_can_expand():
    """Kubernetes puts in only what stands earlier in the list; the rest stays as $(NAME) in the span."""
    for env in ray_environments(traced()):
        names = [entry["name"] for entry in env]
        place = names.index("OTEL_RESOURCE_ATTRIBUTES")
        attributes = dict(pair.split("=") for pair in env[place]["value"].split(","))
        assert {"k8s.namespace.name", "k8s.pod.name", "k8s.node.name"} <= set(attributes)
        used = re.findall(r"\$\(([A-Z0-9_]+)\)", env[place]["value"])
        assert len(used) == len(attributes)
        assert set(used) <= set(names[:place])
        assert all("fieldRef" in env[names.index(name)]["valueFrom"] for name in used)


def test_headers_come_from_the_secret_alone():
    for env in ray_environments(traced(existingSecret="otlp")):
        (entry,) = [entry for entry in env if entry["name"] == "OTEL_EXPORTER_OTLP_HEADERS"]
        assert entry["valueFrom"] == {"secretKeyRef": {"name": "otlp", "key": "OTEL_EXPORTER_OTLP_HEADERS"}}
    for env in ray_environments(traced()):
        assert "OTEL_EXPORTER_OTLP_HEADERS" not in {entry["name"] for entry in env}


@pytest.mark.parametrize(("format", "encoding"), [("json", "JSON"), ("text", "TEXT")])
@pytest.mark.parametrize("level", ["DEBUG", "WARNING"])
def test_format_and_level_of_the_logs_reach_serve_and_ray(format: str, encoding: str, level: str):
    objects = render({"monitoring": {"logs": {"format": format, "level": level}}})
    logging = LoggingConfig(**serve_config(objects)["logging_config"])
    assert (logging.encoding, logging.log_level, logging.enable_access_log) == (encoding, level, True)
    for env in ray_environments(objects):
        backend = {entry["name"]: entry.get("value") for entry in env}.get("RAY_BACKEND_LOG_JSON")
        assert backend == ("1" if format == "json" else None)


def test_user_variables_win_over_ours():
    objects = render({"serve": {"env": {"RAY_BACKEND_LOG_JSON": "0"}}})
    for env in ray_environments(objects):
        assert {"name": "RAY_BACKEND_LOG_JSON", "value": "0"} in env
