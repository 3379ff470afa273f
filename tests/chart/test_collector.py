"""The log collector: what the chart renders, and a real OpenTelemetry Collector that runs on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci.tools import binary

from tests.support import kuberay
from tests.support.chart import HELMS, Manifest, Objects, render
from tests.support.log_store import Line, log_store
from tests.support.ray_head import free_port

LOKI = "http://loki.logging.svc/otlp"
ELASTIC = "https://elasticsearch.logging.svc:9200"
DEADLINE_S = 60


def collected(format: str = "json", helm: str = "helm4", **collector: Any) -> Objects:
    logs = {"format": format, "collector": {"enabled": True, "lokiEndpoint": LOKI} | collector}
    return render({"workers": {"a": {}, "b": {}}, "monitoring": {"logs": logs}}, helm=helm)


def config_text(objects: Objects) -> str:
    text: str = objects.find("ConfigMap", "demo-llm-ray-collector")["data"]["config.yaml"]
    return text


def config(objects: Objects) -> Manifest:
    loaded: Manifest = yaml.safe_load(config_text(objects))
    return loaded


def collectors(objects: Objects) -> Iterator[tuple[kuberay.Pod, Manifest]]:
    """Each kind of pod and its collector."""
    owner = next(item for item in objects if item["kind"] in ("RayCluster", "RayService"))
    for pod in kuberay.kinds_of_pods(owner):
        (found,) = [one for one in pod.spec.get("initContainers", ()) if one["name"] == "collector"]
        yield pod, found


def test_the_default_release_ships_no_logs():
    objects = render()
    assert "collector" not in str(list(objects))


def test_every_pod_has_one_collector_that_outlives_ray_and_may_not_take_the_pod_out_of_service():
    found = list(collectors(collected()))
    assert {pod.group for pod, _ in found} == {"headgroup", "a", "b"}
    for _, container in found:
        assert container["restartPolicy"] == "Always", "a sidecar: stops after Ray, starts again in any pod"
        assert "readinessProbe" not in container
        assert {"startupProbe", "livenessProbe"} <= set(container)


def test_a_collector_may_read_ray_s_logs_and_write_its_own_state_only():
    objects = collected()
    for pod, container in collectors(objects):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {"/var/lib/otelcol"}
        ray = next(one for one in pod.spec["containers"] if one["name"].startswith("ray-"))
        assert mounts["/tmp"]["name"] == next(m["name"] for m in ray["volumeMounts"] if m["mountPath"] == "/tmp")
        assert all(mount["name"] in volumes for mount in mounts.values())
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert volumes["collector-config"]["configMap"]["name"] == "demo-llm-ray-collector"
    written = config(objects)["extensions"]["file_storage"]["directory"]
    assert written == "/var/lib/otelcol"


def test_the_probes_ask_the_port_that_the_collector_listens_on():
    objects = collected(healthPort=20098)
    assert config(objects)["extensions"]["health_check"]["endpoint"] == "0.0.0.0:20098"
    for _, container in collectors(objects):
        (port,) = container["ports"]
        assert (port["name"], port["containerPort"]) == ("collector", 20098)
        assert container["livenessProbe"]["httpGet"]["port"] == "collector"


def test_every_variable_in_the_configuration_is_given_to_the_container():
    objects = collected(elasticsearchEndpoint=ELASTIC, existingSecret="stores")
    used = set(re.findall(r"\$\{env:(\w+)", config_text(objects)))
    assert {"K8S_POD_NAME", "LOKI_TENANT", "ELASTICSEARCH_PASSWORD"} <= used
    for _, container in collectors(objects):
        assert {entry["name"] for entry in container["env"]} == used


def test_only_the_named_keys_of_the_secret_are_given_and_none_is_required():
    keys = {"ELASTICSEARCH_PASSWORD", "ELASTICSEARCH_USER", "LOKI_TENANT"}
    for _, container in collectors(collected(existingSecret="stores")):
        assert "envFrom" not in container
        refs = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] in keys]
        assert refs == [{"name": "stores", "key": key, "optional": True} for key in sorted(keys)]


@pytest.mark.parametrize(
    ("stores", "exporters"),
    [
        ({"lokiEndpoint": LOKI}, ["otlphttp/loki"]),
        ({"lokiEndpoint": "", "elasticsearchEndpoint": ELASTIC}, ["elasticsearch"]),
        ({"lokiEndpoint": LOKI, "elasticsearchEndpoint": ELASTIC}, ["elasticsearch", "otlphttp/loki"]),
    ],
)
def test_logs_go_to_the_stores_that_have_an_address(stores: dict[str, str], exporters: list[str]):
    made = config(collected(**stores))
    assert sorted(made["exporters"]) == exporters
    assert made["service"]["pipelines"]["logs"]["exporters"] == exporters
    for exporter in made["exporters"].values():
        assert exporter["sending_queue"]["block_on_overflow"] is True
        assert not {"headers", "user", "password"} & set(exporter), "without a Secret"


def test_replicas_stop_writing_to_stderr_so_that_no_line_is_shipped_twice():
    for objects, expected in ((collected(), "0"), (render(), None)):
        owner = next(item for item in objects if item["kind"] == "RayCluster")
        for pod in kuberay.kinds_of_pods(owner):
            ray = next(one for one in pod.spec["containers"] if one["name"].startswith("ray-"))
            env = {entry["name"]: entry.get("value") for entry in ray["env"]}
            assert env.get("RAY_SERVE_LOG_TO_STDERR") == expected


def environment(text: str) -> dict[str, str]:
    """A value for every variable that the configuration names."""
    return os.environ | {name: f"the-{name.lower()}" for name in re.findall(r"\$\{env:(\w+)", text)}


@contextmanager
def running(folder: Path, objects: Objects) -> Iterator[subprocess.Popen[bytes]]:
    """A collector on the rendered configuration, with its directories moved into folder and its port to loopback."""
    text = config_text(objects).replace("/var/lib/otelcol", f"{folder}/state")
    text = text.replace("0.0.0.0:8098", f"127.0.0.1:{free_port()}")
    (folder / "config.yaml").write_text(text.replace("/tmp/ray/", f"{folder}/ray/"))
    with (folder / "stderr").open("ab") as stderr:
        process = subprocess.Popen(
            [binary("otelcol"), "--config", folder / "config.yaml"],
            env=environment(text) | {"TZ": "UTC"},
            stdout=stderr,
            stderr=stderr,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def until(true: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, (folder / "stderr").read_text()[-2000:]
        time.sleep(0.1)


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("helm", HELMS)
def test_the_collector_accepts_its_configuration(format: str, helm: str, tmp_path: Path):
    text = config_text(collected(format, helm, existingSecret="stores")).replace("/var/lib/otelcol", str(tmp_path))
    (tmp_path / "config.yaml").write_text(text)
    done = subprocess.run(
        [binary("otelcol"), "validate", "--config", tmp_path / "config.yaml"],
        env=environment(text), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def ray_line(number: int) -> str:
    """A line as Serve's JSON formatter writes it."""
    return json.dumps(
        {
            "asctime": "2026-01-01 00:00:00,000",
            "levelname": "WARNING",
            "message": f"POST /v1/completions 200 {number}ms",
            "filename": "replica.py",
            "lineno": 1,
            "request_id": f"request-{number}",
            "timestamp_ns": 1_767_225_600_000_000_000 + number,
        }
    )


RAYLET_LINE = (
    '{"asctime":"2026-01-01 00:00:01,250","levelname":"W","message":"Disconnecting client due to connection error",'
    '"component":"raylet","filename":"store.cc","lineno":366}'
)
"""As Ray's C++ processes write it under RAY_BACKEND_LOG_JSON."""


def requests(lines: list[Line]) -> list[str]:
    return [line.attributes["request_id"] for line in lines if "request_id" in line.attributes]


def test_lines_wait_for_a_store_that_is_down_and_arrive_once_even_when_the_collector_restarts(tmp_path: Path):
    store_port = free_port()
    endpoint = f"http://127.0.0.1:{store_port}/otlp"
    objects = collected(lokiEndpoint=endpoint, existingSecret="stores")
    logs = tmp_path / "ray" / "session_1" / "logs"
    (logs / "serve").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "ray" / "session_latest").symlink_to(logs.parent)
    serve = logs / "serve" / "replica_llm_engine_abc.log"
    serve.write_text("".join(ray_line(number) + "\n" for number in range(500)))
    (logs / "worker-1.err").write_text(":job_id:01000000\nTraceback (most recent call last):\n{no json\n")
    (logs / "raylet.out").write_text(RAYLET_LINE + "\n")
    (logs / "dashboard.log").write_text("2026-01-01 00:00:02,500\tINFO head.py:516 -- Initialize the http server.\n")
    (logs / "python-core-worker-1.log").write_text("noise\n")
    with running(tmp_path, objects) as first:
        until(lambda: b"Will retry" in (tmp_path / "stderr").read_bytes(), tmp_path)
        assert first.poll() is None
        with log_store(store_port) as store:
            until(lambda: len(store.lines) >= 504, tmp_path)
            first.terminate()
            first.wait(timeout=30)
            with serve.open("a") as more:
                more.write(ray_line(500) + "\n")
            with running(tmp_path, objects):
                until(lambda: "request-500" in requests(store.lines), tmp_path)
            lines = store.lines
    assert store.paths == {"/otlp/v1/logs"}
    assert sorted(requests(lines), key=lambda name: int(name[8:])) == [f"request-{number}" for number in range(501)]
    last = next(line for line in lines if line.attributes.get("request_id") == "request-500")
    assert (last.body, last.severity) == ("POST /v1/completions 200 500ms", "WARNING")
    assert last.time_ns == 1_767_225_600_000_000_500
    assert last.tenant == "the-loki_tenant"
    assert last.resource["service.name"] == "demo-llm-ray"
    assert last.resource["k8s.pod.name"] == "the-k8s_pod_name"
    assert [line.body for line in lines if line.attributes["log.file.name"] == "worker-1.err"] == [
        "Traceback (most recent call last):",
        "{no json",
    ]
    (raylet,) = [line for line in lines if line.attributes["log.file.name"] == "raylet.out"]
    assert (raylet.body, raylet.severity) == ("Disconnecting client due to connection error", "W")
    assert raylet.time_ns % 86_400_000_000_000 == 1_250_000_000
    (daemon,) = [line for line in lines if line.attributes["log.file.name"] == "dashboard.log"]
    assert (daemon.body[-7:], daemon.severity) == ("server.", "INFO")
    assert daemon.time_ns % 86_400_000_000_000 == 2_500_000_000
    assert not [line for line in lines if line.body == "noise"]
