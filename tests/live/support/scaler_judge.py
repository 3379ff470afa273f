"""Judges what the scaler decided by what the API server had when it decided: every version of every pod is kept."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.dynamic import DynamicClient

from tests.live.support.cluster import Cluster
from tests.live.support.scaler import GROUP, IDLE, gang_of
from tests.live.support.upgrades import RAY_CLUSTER

SCALED = re.compile(
    r"event=scaled cluster=(?P<cluster>\S+) group=\S+ generation=(?P<generation>\d+) from=(?P<before>\d+) "
    r"to=(?P<after>\d+) pods_at=(?P<pods_at>\d+) workers_to_delete=(?P<names>\S*)\n"
)
WATCH_S = 30


@dataclass(frozen=True)
class PodState:
    """A pod at one resource version."""

    name: str
    gang: str
    cluster: str
    is_ending: bool
    is_ready: bool
    is_idle: bool


@dataclass
class History:
    """Of the worker pods and RayClusters of a namespace, from its watch. Resource versions order them all."""

    hosts: Mapping[str, int]
    """Of each RayCluster by name."""
    pods: dict[str, list[tuple[int, PodState | None]]] = field(default_factory=dict)
    named: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """workersToDelete, by the RayCluster's name and generation."""
    seen: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, event: Mapping[str, Any]) -> None:
        body = event["raw_object"]
        version = int(body["metadata"]["resourceVersion"])
        self.seen[kind] = version
        if event["type"] == "BOOKMARK":
            return
        if kind == "RayCluster":
            [group] = body["spec"]["workerGroupSpecs"]
            named = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
            self.named[body["metadata"]["name"], body["metadata"]["generation"]] = frozenset(named)
        elif body["metadata"].get("labels", {}).get("ray.io/group") == GROUP:
            state = None if event["type"] == "DELETED" else self._state(body)
            self.pods.setdefault(body["metadata"]["name"], []).append((version, state))

    def _state(self, body: Mapping[str, Any]) -> PodState:
        metadata = body["metadata"]
        cluster = metadata["labels"]["ray.io/cluster"]
        conditions = {one["type"]: one["status"] for one in body.get("status", {}).get("conditions") or []}
        return PodState(
            name=metadata["name"],
            gang=gang_of(body, self.hosts[cluster]),
            cluster=cluster,
            is_ending=bool(metadata.get("deletionTimestamp")),
            is_ready=conditions.get("Ready") == "True",
            is_idle=IDLE in (metadata.get("annotations") or {}),
        )

    def at(self, cluster: str, version: int) -> dict[str, list[PodState]]:
        """The gangs of a cluster as they were then."""
        found: dict[str, list[PodState]] = {}
        for states in list(self.pods.values()):
            before = [state for at, state in states if at <= version]
            if before and before[-1] is not None and before[-1].cluster == cluster:
                found.setdefault(before[-1].gang, []).append(before[-1])
        return found


class Watcher:
    """Fills a History until it is stopped."""

    def __init__(self, cluster: Cluster, namespace: str, hosts: Mapping[str, int]) -> None:
        self.history = History(hosts)
        self._cluster, self._namespace = cluster, namespace
        self._stop = threading.Event()
        self.failures: list[str] = []
        for kind, api in (("Pod", "v1"), ("RayCluster", "ray.io/v1")):
            threading.Thread(target=self._watch, args=(kind, api), daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, kind: str, api: str) -> None:
        client = DynamicClient(ApiClient(self._cluster.configuration))
        resource = client.resources.get(api_version=api, kind=kind)
        version = resource.get(namespace=self._namespace).metadata.resourceVersion
        try:
            while not self._stop.is_set():
                for event in resource.watch(namespace=self._namespace, resource_version=version, timeout=WATCH_S):
                    self.history.take(kind, event)
                    version = event["raw_object"]["metadata"]["resourceVersion"]
        except Exception as error:  # it would look like a quiet scaler
            self.failures.append(f"watch of {kind}: {error!r}")

    def catch_up(self, cluster: str, seconds: float = 60) -> None:
        """Until all that was written so far has come: a head pod and the RayCluster are marked, the marks awaited."""
        labels = f"ray.io/cluster={cluster},ray.io/node-type=head"
        [head] = [pod["metadata"]["name"] for pod in self._cluster.pods(self._namespace, labels)]
        deadline = time.monotonic() + seconds
        for kind, name in (("Pod", head), (RAY_CLUSTER, cluster)):
            marked = self._cluster.patch(kind, name, self._namespace, {"metadata": {"annotations": {"mark": "now"}}})
            version = int(marked["metadata"]["resourceVersion"])
            while self.history.seen.get(kind.partition(".")[0], 0) < version:
                assert not self.failures, self.failures
                assert time.monotonic() < deadline, f"the watch is at {self.history.seen}, {kind} is at {version}"
                time.sleep(0.1)


def decisions(log: str) -> list[dict[str, str]]:
    """Those that the scaler lived to tell."""
    return [found.groupdict() for found in SCALED.finditer(log)]


def faults(history: History, decision: Mapping[str, str]) -> tuple[list[str], int]:
    """What was wrong with it; and how many busy gangs it chose, so that one sees that it was put to the test."""
    cluster, generation = decision["cluster"], int(decision["generation"])
    gangs = history.at(cluster, int(decision["pods_at"]))
    named = frozenset(name for name in decision["names"].split(",") if name)
    written = history.named.get((cluster, generation + 1))
    found = []
    if written is not None and written != named:
        found.append(f"the cluster has {sorted(written)}, the log {sorted(named)}")
    before = history.named.get((cluster, generation), frozenset())
    chosen, spared = set(), set()
    for name, pods in gangs.items():
        own = {pod.name for pod in pods}
        if named & own and own - named:
            found.append(f"half of {name} is named: {sorted(own & named)}")
        if any(pod.is_ending for pod in pods) or own & before:
            continue
        (chosen if own <= named else spared).add(name)
    if unknown := named - {pod.name for pods in gangs.values() for pod in pods}:
        found.append(f"{sorted(unknown)} did not exist")
    busy = {name for name in chosen if all(pod.is_ready for pod in gangs[name]) and not _is_idle(gangs[name])}
    idle = {name for name in spared if _is_idle(gangs[name])}
    if busy and idle:
        found.append(f"busy {sorted(busy)} go, idle {sorted(idle)} stay")
    return [f"{decision}: {one}" for one in found], len(busy)


def _is_idle(pods: list[PodState]) -> bool:
    return all(pod.is_idle for pod in pods)
