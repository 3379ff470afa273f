"""What a rollout is watched and moved with: a client that never stops asking, room that can be given, who scales."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.live.support.cluster import Cluster, Object
from tests.live.support.upgrades import Release

SEAT = "example.com/seat"
READY_S = 120

ASK = """
import http.client, sys, time
host, body = sys.argv[1], sys.argv[2]
while True:
    began = time.monotonic()
    try:
        connection = http.client.HTTPConnection(host, 8000, timeout=60)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        told = "answered" if answer.status == 200 and '"text"' in text else f"FAILED {answer.status} {text[:200]!r}"
    except OSError as error:
        told = f"FAILED {error!r}"
    print(f"{told} after {time.monotonic() - began:.2f} s at {time.strftime('%X')}", flush=True)
    time.sleep(0.2)
"""

DEMAND = """
import sys, ray
from ray.autoscaler.sdk import request_resources
ray.init(address="auto", log_to_driver=False)
request_resources(bundles=[{"CPU": float(sys.argv[2])}] * int(sys.argv[1]))
"""


@dataclass(frozen=True)
class Asker:
    """A pod that asks the Service for a short answer, over a new connection each, again and again."""

    cluster: Cluster
    namespace: str
    name: str

    def lines(self) -> list[str]:
        return self.cluster.logs(self.namespace, self.name, "client").splitlines()

    def answers(self) -> int:
        return sum(line.startswith("answered") for line in self.lines())

    def failures(self) -> list[str]:
        """Since the first answer: a Service's first endpoint takes a moment to reach every node's proxy."""
        lines = self.lines()
        first = next((number for number, line in enumerate(lines) if line.startswith("answered")), len(lines))
        return [line for line in lines[first:] if not line.startswith("answered")]


def asker(pod: Object, host: str, model: str) -> Object:
    """A client's pod that asks."""
    body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
    pod["spec"]["containers"][0]["command"] = ["python", "-c", ASK, host, body]
    return pod


@dataclass
class Seats:
    """An extended resource of one node, of which an engine needs one: room for so many engines, to the unit."""

    cluster: Cluster
    node: str

    def offer(self, count: int | None) -> None:
        """None takes the resource off the node again."""
        amounts = {"capacity": {SEAT: None if count is None else str(count)}}
        self.cluster.patch("Node", self.node, None, {"status": amounts}, subresource="status")

    def offered(self) -> str:
        node = self.cluster.get("Node", self.node) or {}
        return str(node["status"]["allocatable"].get(SEAT, "0"))


@contextmanager
def seats(cluster: Cluster) -> Iterator[Seats]:
    """On one of the nodes that can run pods."""
    node = cluster.list("Node", labels="type!=kwok")[-1]["metadata"]["name"]
    made = Seats(cluster, node)
    try:
        yield made
    finally:
        made.offer(None)


class ByTest:
    """Mode hpa: the scaler of the chart llm-ray-scaler is played."""

    def scale(self, release: Release, count: int, name: str) -> None:
        release.scale(count, name)


@dataclass(frozen=True)
class ByRay:
    """Mode serve: Ray's own autoscaler, in the head pod; what is played is the demand, CPUs that only the group has."""

    cpus: int

    def scale(self, release: Release, count: int, name: str) -> None:
        head = release.wait(
            f"the head of {name}", lambda: ready_head(release, name), READY_S, watching=release.namespace
        )
        words = ["python", "-c", DEMAND, str(count), str(self.cpus)]

        def is_demanded() -> bool:
            """A head pod can be ready before Ray knows its node."""
            return release.cluster.exec(release.namespace, head, words, "ray-head", timeout_s=90).status == 0

        release.wait(f"a demand for {count} in {head}", is_demanded, READY_S)
        release.wait(
            f"a count of {count}", lambda: release.count(name) == count, READY_S,
            last_seen=lambda: release.ray_cluster(name)["spec"]["workerGroupSpecs"],
        )  # fmt: skip


def ready_head(release: Release, name: str) -> str:
    """Name of the head pod of a cluster once its Ray answers, empty before."""
    for pod in release.cluster.pods(release.namespace, f"ray.io/cluster={name},ray.io/node-type=head"):
        for one in pod["status"].get("conditions") or []:
            if one["type"] == "Ready" and one["status"] == "True":
                return str(pod["metadata"]["name"])
    return ""


def condition(service: Object, kind: str) -> dict[str, Any]:
    """Of a RayService."""
    conditions = (service.get("status") or {}).get("conditions") or []
    return next((dict(one) for one in conditions if one["type"] == kind), {})


def cluster_of(service: Object, role: str) -> str:
    """Name of the RayCluster that is `active` or `pending`; empty when there is none."""
    return str(((service.get("status") or {}).get(f"{role}ServiceStatus") or {}).get("rayClusterName") or "")
