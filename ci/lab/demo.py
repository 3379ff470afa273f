"""`make cluster-demo`: the lab, the image, `helm install`, and a streamed answer through the release's Service."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from ci import image
from ci.lab import model
from ci.lab.addons import DEFAULT
from ci.lab.cluster import Cluster, environment
from ci.lab.errors import LabError
from ci.lab.log import Say, timed
from ci.lab.processes import Word, command
from ci.lab.settings import settings
from ci.lab.up import load, up
from ci.tools import ToolError, binary
from llm_ray import demo
from llm_ray.launch import Endpoints
from llm_ray.model_store import DEMO_NAME

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / "llm-ray.tar"
IMAGE = "localhost/llm-ray:dev"
CHART = ROOT / "charts" / "llm-ray"
RELEASE, NAMESPACE = "llm", "llm"
READY_SECONDS = 600.0


def run(profile: str, say: Say) -> None:
    """All of it; each step is skipped by itself when its result is there. Raises LabError."""
    lab = settings()
    image.build("cpu", IMAGE, ARCHIVE)
    say(f"the image is in {ARCHIVE.relative_to(ROOT)}")
    up(lab, profile, say)
    load(lab, ARCHIVE, say)
    cluster = Cluster(lab)
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    model.provide(cluster, NAMESPACE)
    os.environ.update(environment(lab))
    values: list[Word] = ["--values", CHART / "ci" / "laptop-cpu.yaml"]
    values += ["--set", f"model.name={DEMO_NAME}", "--set", f"model.source={model.SOURCE}"]
    command(binary("helm4"), "upgrade", "--install", RELEASE, CHART, "--namespace", NAMESPACE, *values)
    say(f"helm install {RELEASE} {CHART.relative_to(ROOT)} --values {CHART.relative_to(ROOT)}/ci/laptop-cpu.yaml")
    name = f"{RELEASE}-llm-ray"
    _wait_until_it_serves(cluster, name, say)
    serve = _service(cluster, f"{name}-serve")
    ports = {port["name"]: port["port"] for port in serve["ports"]}
    endpoints = Endpoints(serve["clusterIP"], ports["http"], ports.get("grpc", 0))
    print(f"\n> {demo.QUESTION}")
    timing = demo.answer(endpoints, sys.stdout)
    print(f"\ntime to first token {timing.first_token_s * 1000:.0f} ms, then {timing.tokens_per_s:.1f} tokens/s")
    head = _service(cluster, f"{name}-head-svc")
    print(_next_steps(endpoints, f"http://{_pod_ip_of(cluster, head)}:8265"))


def _wait_until_it_serves(cluster: Cluster, name: str, say: Say) -> None:
    """Progress of the pods, until one of them is labelled as serving."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=llm-ray.io/name%3D{name}"
    end, told = time.monotonic() + READY_SECONDS, ""
    while time.monotonic() < end:
        pods = (cluster.get(path) or {}).get("items", [])
        serving = [pod for pod in pods if pod["metadata"]["labels"].get("llm-ray.io/serving") == "true"]
        now = ", ".join(sorted(f"{_role(pod)} on {pod['spec'].get('nodeName', '?')} {_state(pod)}" for pod in pods))
        if now != told:
            say(now or "no pods yet")
            told = now
        if serving:
            return
        time.sleep(1)
    events = cluster.kubectl("-n", NAMESPACE, "get", "events", "--sort-by=.lastTimestamp", check=False)
    raise LabError(f"nothing serves after {READY_SECONDS:.0f} s; the last events:\n{events[-3000:]}")


def _role(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get("ray.io/node-type", "pod"))


def _state(pod: dict[str, Any]) -> str:
    if pod["metadata"]["labels"].get("llm-ray.io/serving") == "true":
        return "serving"
    statuses = pod["status"].get("containerStatuses", [])
    return "ready" if statuses and all(one["ready"] for one in statuses) else str(pod["status"]["phase"]).lower()


def _service(cluster: Cluster, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = (cluster.get(f"/api/v1/namespaces/{NAMESPACE}/services/{name}") or {}).get("spec", {})
    if not spec:
        raise LabError(f"Service {NAMESPACE}/{name} is not there: `python -m ci.lab kubectl -n {NAMESPACE} get all`")
    return spec


def _pod_ip_of(cluster: Cluster, service: dict[str, Any]) -> str:
    """The head's own address, where its Service is headless."""
    if service["clusterIP"] not in ("", "None"):
        return str(service["clusterIP"])
    wanted = "%2C".join(f"{key}%3D{value}" for key, value in service["selector"].items())
    pods = (cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={wanted}") or {}).get("items", [])
    return str(pods[0]["status"]["podIP"]) if pods else "unknown"


def _next_steps(endpoints: Endpoints, dashboard: str) -> str:
    return f"""
OpenAI API      {endpoints.url}/v1
Ray dashboard   {dashboard}
kubectl         .venv/bin/python -m ci.lab kubectl -n {NAMESPACE} get pods
ask more        curl {endpoints.url}/v1/models
stop            make lab-down"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.lab.demo", description=__doc__)
    parser.add_argument("--profile", default=DEFAULT, help="of the lab (default %(default)s)")
    chosen = parser.parse_args()
    try:
        run(chosen.profile, timed())
    except (LabError, ToolError) as error:
        print(f"cluster-demo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
