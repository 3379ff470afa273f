"""The deployer against a real Serve that goes and comes back, and Serve's spans at an OTLP collector."""

from __future__ import annotations

import io
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_ray.deployer.kube import Kubernetes
from llm_ray.deployer.loop import Deployer, Settings
from llm_ray.deployer.report import Log
from llm_ray.deployer.serve_api import PATH, ServeAPI
from tests.app.otlp_collector import Collector, collector
from tests.app.stand_ins import NAMESPACE, KubernetesAPI, kubernetes_api, pod
from tests.support.ray_head import RayHead, free_port, ray_head

pytestmark = pytest.mark.serve

TRACING = {
    "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": "llm_ray.tracing:exporter",
    "RAY_SERVE_TRACING_SAMPLING_RATIO": "1.0",
    "OTEL_SERVICE_NAME": "llm",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=team-a",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}


@dataclass
class Rig:
    head: RayHead
    kubernetes: KubernetesAPI
    collector: Collector
    config: Path
    port: int = field(default_factory=free_port)
    out: io.StringIO = field(default_factory=io.StringIO)
    deployer: Deployer | None = None

    def new_deployer(self, kubeconfig: Path) -> None:
        settings = Settings(kind="RayCluster", cluster="ray-1", config=self.config)
        api = ServeAPI(self.head.url, self.head.token)
        self.deployer = Deployer(settings, api, Kubernetes(NAMESPACE, kubeconfig), Log(self.out))

    def write(self, **args: Any) -> None:
        app = {"name": "small", "route_prefix": "/", "import_path": "tests.support.small_serve_app:build", "args": args}
        http = {"host": "127.0.0.1", "port": self.port}
        config = {"proxy_location": "HeadOnly", "http_options": http, "applications": [app]}
        self.config.write_text(json.dumps(config))

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 120.0) -> Any:
        """Tick until it holds."""
        deadline = time.monotonic() + timeout_s
        assert self.deployer is not None
        while True:
            self.deployer.tick()
            if value := condition():
                return value
            assert time.monotonic() < deadline, f"{what} did not come in {timeout_s} s:\n{self.out.getvalue()[-6000:]}"
            time.sleep(0.2)

    def ticks(self, times: int) -> None:
        assert self.deployer is not None
        for _ in range(times):
            self.deployer.tick()
            self.deployer.wait_for_put(60)

    def app(self) -> str:
        assert self.deployer is not None
        return str(self.deployer.state()["applications"].get("small", "absent"))

    def events(self, name: str) -> list[str]:
        return [line for line in self.out.getvalue().splitlines() if f" event={name} " in line]

    def ask(self, **headers: str) -> str | None:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", headers=headers)
            with urllib.request.urlopen(request, timeout=10) as response:
                return str(response.read().decode())
        except (urllib.error.HTTPError, OSError):
            return None

    def is_labelled(self) -> bool:
        return self.kubernetes.labelled() == {"head"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("rig")
    with (
        collector() as receiver,
        kubernetes_api(folder) as (kubernetes, kubeconfig),
        ray_head(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **TRACING) as head,
    ):
        kubernetes.add(pod("head", head.ip, node_type="head"))
        made = Rig(head, kubernetes, receiver, folder / "config.yaml")
        made.new_deployer(kubeconfig)
        yield made


def test_from_nothing_to_a_labelled_pod_with_one_put(rig: Rig) -> None:
    rig.write(text="one")
    rig.until(rig.is_labelled, "the label")
    assert rig.ask() == "one"
    rig.ticks(30)
    assert len(rig.events("put")) == 1
    assert "Serve is not running" in rig.events("put")[0]


def test_a_request_leaves_its_spans_at_the_collector(rig: Rig) -> None:
    trace_id = os.urandom(16).hex()
    assert rig.ask(traceparent=f"00-{trace_id}-{os.urandom(8).hex()}-01") == "one"
    wanted = {"proxy_http_request", "replica_handle_request"}
    rig.until(lambda: any(wanted <= {n.split()[0] for n in rig.collector.names(trace_id)} for _ in [0]), "spans", 30)
    assert {resource["service.name"] for resource in rig.collector.resources} == {"llm"}
    assert rig.collector.headers["x-tenant"] == "team-a"


def test_an_edit_is_rolled_out_under_the_label(rig: Rig) -> None:
    before = len(rig.kubernetes.patches)
    rig.write(text="two")
    rig.until(lambda: rig.app() == "RUNNING" and rig.ask() == "two", "the new answer")
    assert rig.is_labelled()
    assert len(rig.events("put")) == 2
    assert len(rig.kubernetes.patches) == before


def test_a_failed_redeploy_leaves_the_old_answers_and_the_label_and_is_put_once(rig: Rig) -> None:
    before = len(rig.events("put"))
    rig.write(error="asked to fail")
    rig.until(lambda: rig.app() == "DEPLOY_FAILED", "the failure")
    rig.ticks(30)
    assert rig.is_labelled()
    assert rig.ask() == "two"
    assert len(rig.events("put")) == before + 1
    assert any("asked to fail" in line for line in rig.events("application"))
    rig.write(text="three")
    rig.until(lambda: rig.ask() == "three" and rig.app() == "RUNNING", "the repair")


def test_a_config_that_serve_refuses_is_told_once(rig: Rig) -> None:
    before = len(rig.events("put"))
    good = rig.config.read_text()
    bad = json.loads(good)
    bad["applications"][0]["deployments"] = [{"name": "Say", "num_replicas": -1}]
    rig.config.write_text(json.dumps(bad))
    rig.ticks(20)
    assert len(rig.events("put")) == before + 1
    assert len([line for line in rig.events("trouble") if "num_replicas" in line]) == 1
    assert rig.ask() is not None
    rig.config.write_text(good)
    rig.ticks(5)
    assert "put" not in rig.deployer.state()["troubles"]  # type: ignore[union-attr]


def test_serve_that_was_shut_down_comes_back(rig: Rig) -> None:
    before = len(rig.events("put"))
    headers = {"Authorization": f"Bearer {rig.head.token}"}
    request = urllib.request.Request(rig.head.url + PATH, headers=headers, method="DELETE")
    urllib.request.urlopen(request, timeout=60).close()
    rig.until(lambda: len(rig.events("put")) > before and rig.app() == "RUNNING", "the application")
    rig.until(lambda: rig.ask() == "three" and rig.is_labelled(), "the answer and the label")


def test_a_head_that_died_gets_everything_again(rig: Rig) -> None:
    before = len(rig.events("put_accepted"))
    rig.head.restart()
    rig.until(lambda: len(rig.events("put_accepted")) > before, "the PUT")
    rig.until(lambda: rig.ask() == "three" and rig.is_labelled(), "the answer and the label")
    rig.ticks(10)
    assert len(rig.events("put_accepted")) == before + 1
