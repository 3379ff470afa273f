"""KubeRay 1.6's treatment of one worker group, as its reconcile reads, and pods that take their time to end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

GROUP = "gpu"


@dataclass
class FakePod:
    name: str
    gang: str
    created: int
    is_ending: bool = False
    is_ready: bool = False
    idle_since: str = ""

    def body(self, hosts: int) -> dict[str, Any]:
        labels = {"ray.io/worker-group-replica-name": self.gang} if hosts > 1 else {}
        return {
            "metadata": {
                "name": self.name,
                "labels": labels,
                "annotations": {"llm-ray.io/idle-since": self.idle_since} if self.idle_since else {},
                "creationTimestamp": f"2026-01-01T{self.created // 3600:02}:{self.created // 60 % 60:02}:"
                f"{self.created % 60:02}Z",
                **({"deletionTimestamp": "2026-01-02T00:00:00Z"} if self.is_ending else {}),
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True" if self.is_ready else "False"}],
            },
        }


@dataclass
class KubeRay:
    """The API server's objects and the operator's one reconcile. `random_victims`: pods it chose by itself."""

    hosts: int = 1
    replicas: int = 1
    min_replicas: int = 0
    max_replicas: int = 6
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    generation: int = 1
    named: list[str] = field(default_factory=list)
    pods: dict[str, FakePod] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    random_victims: list[str] = field(default_factory=list)
    clock: int = 0
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def body(self, **more: Any) -> dict[str, Any]:
        group = {
            "groupName": GROUP,
            "replicas": self.replicas,
            "minReplicas": self.min_replicas,
            "maxReplicas": self.max_replicas,
            "numOfHosts": self.hosts,
            "scaleStrategy": {"workersToDelete": list(self.named)},
        }
        metadata = {"name": "rc", "uid": "rc-uid", "generation": self.generation}
        return {"metadata": metadata, "spec": {"workerGroupSpecs": [group], **more}}

    def apply(self, patch: list[Mapping[str, Any]]) -> bool:
        """A JSON patch as the scaler writes it; False when a test fails."""
        values = {one["path"]: one["value"] for one in patch}
        if values["/metadata/generation"] != self.generation:
            return False
        base = "/spec/workerGroupSpecs/0"
        self.rewrite(values[f"{base}/replicas"], values[f"{base}/scaleStrategy/workersToDelete"])
        return True

    def rewrite(self, replicas: int, named: list[str] | None = None) -> None:
        before = self.replicas, self.named
        self.replicas, self.named = replicas, list(named or [])
        self.generation += before != (self.replicas, self.named)

    @property
    def wanted(self) -> int:
        return min(max(self.replicas, self.min_replicas), self.max_replicas)

    def gangs(self) -> dict[str, list[FakePod]]:
        found: dict[str, list[FakePod]] = {}
        for pod in self.pods.values():
            found.setdefault(pod.gang, []).append(pod)
        return found

    def whole(self) -> list[str]:
        """Gangs that are all there and stay."""
        return [
            name
            for name, pods in self.gangs().items()
            if len(pods) == self.hosts and not any(pod.is_ending for pod in pods)
        ]

    def reconcile(self) -> None:
        if self.awaited & self.pods.keys():  # what it deleted is not gone yet
            return
        self.awaited.clear()
        if self.hosts > 1:
            self._reconcile_gangs()
        else:
            self._reconcile_pods()

    def _reconcile_pods(self) -> None:
        for name in self.named:
            self._delete(name)
        counted = [name for name in self.pods if name not in self.named]
        self.chance.shuffle(counted)
        self._fit(len(counted), counted, lambda name: [name])

    def _reconcile_gangs(self) -> None:
        gangs = self.gangs()
        for pods in gangs.values():
            if len(pods) < self.hosts:
                for pod in pods:
                    self._delete(pod.name)
                return
        named = {self.pods[name].gang for name in self.named if name in self.pods}
        if named:
            for pod in [pod for gang in named for pod in gangs[gang]]:
                self._delete(pod.name)
            return
        counted = list(gangs)
        self.chance.shuffle(counted)
        self._fit(len(counted), counted, lambda name: [pod.name for pod in gangs[name]])

    def _fit(self, count: int, candidates: list[str], pods_of: Callable[[str], list[str]]) -> None:
        for _ in range(self.wanted - count):
            self._create()
        for name in candidates[: max(0, count - self.wanted)]:
            for pod in pods_of(name):
                if not self.pods[pod].is_ending:
                    self.random_victims.append(pod)
                self._delete(pod)

    def _create(self) -> None:
        gang = f"gang-{next(self._numbers)}"
        for host in range(self.hosts):
            name = f"{gang}-{host}" if self.hosts > 1 else gang
            self.pods[name] = FakePod(name, gang, self.clock)
        self.clock += 1

    def _delete(self, name: str) -> None:
        if name in self.pods:
            self.pods[name].is_ending = True
            self.awaited.add(name)

    def end(self, name: str) -> None:
        """Its grace period is over."""
        del self.pods[name]
