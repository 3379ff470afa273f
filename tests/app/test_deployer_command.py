"""`llm-ray deployer` as the chart runs it, its health, and what a wrong start says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from llm_ray.deployer.report import Health
from tests.app.stand_ins import NAMESPACE, Dashboard, kubernetes_api, listening, pod
from tests.support.ray_head import free_port

APP = Path(__file__).parents[2] / "app"


def test_health_turns_when_the_loop_stands_still() -> None:
    now = [0.0]
    health = Health(0, lambda: now[0])
    try:
        health.state = {"applications": {"llm": "RUNNING"}}
        assert get(health.port) == (200, {"applications": {"llm": "RUNNING"}, "last_beat_s": 0.0})
        now[0] = 31.0
        assert get(health.port)[0] == 503
        health.beat()
        assert get(health.port)[0] == 200
        assert get(health.port, "/other")[0] == 404
    finally:
        health.close()


def get(port: int, path: str = "/healthz") -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, None


def environment(**extra: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(APP)} | extra


@contextmanager
def command(*flags: str, log: Path, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "llm_ray.cli", "deployer", *flags], stderr=stderr, env=environment(**extra)
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        time.sleep(0.05)
    return value


def test_the_command_of_the_chart_deploys_labels_answers_and_ends_at_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("applications: [{name: llm, import_path: 'a:b'}]\n")
    dashboard = Dashboard(token="secret", proxies={"10.0.0.2": "HEALTHY"})
    log = tmp_path / "log"
    with kubernetes_api(tmp_path) as (kubernetes, kubeconfig), listening(dashboard):
        kubernetes.add(pod("head", "10.0.0.1", node_type="head"), pod("w1", "10.0.0.2"))
        port = free_port()
        flags = ["--kind=RayCluster", f"--config={config}", "--exclude-head", f"--health-port={port}"]
        flags += [f"--dashboard={dashboard.url}", f"--kubeconfig={kubeconfig}", "--period-s=0.1"]
        env = {"POD_NAMESPACE": NAMESPACE, "RAY_CLUSTER": "ray-1", "RAY_AUTH_TOKEN": "secret"}
        with command(*flags, log=log, **env) as process:
            state = eventually(lambda: served(port, "w1"), "the label")
            assert state["applications"] == {"llm": "RUNNING"}
            assert state["troubles"] == {}
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert kubernetes.labelled() == {"w1"}
    assert len(dashboard.puts) == 1
    assert " event=stop" in log.read_text().splitlines()[-1]
    assert "secret" not in log.read_text()


def served(port: int, pod: str) -> Any:
    """The health's state once it has labelled that pod."""
    with suppress(OSError):
        status, state = get(port)
        return state if status == 200 and state.get("labelled") == [pod] else None


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        ((), {}, "kind (None) must be one of RayCluster, RayService: give --kind"),
        ((), {"LLM_RAY_DEPLOYER_KIND": "RayJob"}, "kind (RayJob) must be one of RayCluster, RayService"),
        (("--kind=RayCluster",), {}, "namespace is not set: give --namespace, or the pod POD_NAMESPACE"),
        (("--kind=RayCluster",), {"POD_NAMESPACE": "n"}, "cluster is not set: give --cluster, or the pod RAY_CLUSTER"),
        (("--kind=RayCluster",), {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c"}, "needs --config"),
        (("--kind=RayService",), {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c"}, "needs --service, or RAY_SERVICE"),
        (
            ("--kind=RayService", "--config=x"),
            {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c", "RAY_SERVICE": "s"},
            "config (x) is of no use",
        ),
        (
            ("--kind=RayCluster", "--config=x", "--period-s=nan"),
            {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c"},
            "period_s (nan) must be between 0.05",
        ),
        (
            ("--kind=RayCluster", "--config=x"),
            {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c"},
            "no access to Kubernetes (Service host/port is not set.): run inside a pod",
        ),
        (
            ("--kind=RayCluster", "--config=x", "--dashboard=localhost:8265"),
            {"POD_NAMESPACE": "n", "RAY_CLUSTER": "c"},
            "dashboard ('localhost:8265') must be an address like http://127.0.0.1:8265",
        ),
    ],
)
def test_a_wrong_start_says_what_to_give(flags: tuple[str, ...], env: dict[str, str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llm_ray.cli", "deployer", *flags],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "module", ["llm_ray.deployer.loop", "llm_ray.model_pull.source", "llm_ray.model_pull.hub", "llm_ray.model_pull.s3"]
)
def test_what_runs_beside_ray_loads_neither_ray_nor_torch(module: str) -> None:
    code = f"import sys, llm_ray.cli, {module}; print(sorted({{'ray', 'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
