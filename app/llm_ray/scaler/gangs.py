"""Gangs, which of them go, and what KubeRay is to be told. Pure.

What KubeRay 1.6 does with a group, as far as it matters here:

- It counts every pod that exists, also one that is ending, but for those named in workersToDelete. If that is more than
  `replicas`, it deletes others at random. So as long as there are more gangs than wanted, everything that is on its
  way out stays named, however long it takes to end.
- What is named is deleted whatever `replicas` says, with several hosts the whole gang. Nobody clears the list.
- Of a gang with several hosts of which a pod is gone, the others are deleted; while one is ending, they are not.
  Its engine is lost by then, so the gang is named at once.
- A group of which it deleted pods is left alone until these are gone.
- A pod that was gone before it saw it is waited for, and after 30 s nothing wakes it: up to 5 minutes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llm_ray.scaler.model import Cluster, Group, Pod


@dataclass(frozen=True)
class Gang:
    """One KubeRay replica: `hosts` pods that hold one engine."""

    name: str
    pods: tuple[Pod, ...]
    hosts: int = 1
    is_named: bool = False

    @property
    def is_ending(self) -> bool:
        """A pod that ends takes the engine with it."""
        return any(pod.is_ending for pod in self.pods)

    @property
    def is_torn(self) -> bool:
        """Pods of it go on beside one that ends."""
        return self.is_ending and not all(pod.is_ending for pod in self.pods)

    @property
    def is_whole(self) -> bool:
        return not self.is_ending and len(self.pods) >= self.hosts

    @property
    def is_ready(self) -> bool:
        return self.is_whole and all(pod.is_ready for pod in self.pods)

    @property
    def idle_since(self) -> datetime | None:
        """Since when all of it has been idle."""
        times = [pod.idle_since for pod in self.pods if pod.idle_since is not None]
        return max(times) if len(times) == len(self.pods) and times else None

    @property
    def created(self) -> str:
        return max(pod.created for pod in self.pods)

    @property
    def why(self) -> str:
        """Why it may go, for messages."""
        if not self.is_ready:
            return "not ready"
        return f"idle since {self.idle_since:%Y-%m-%dT%H:%M:%SZ}" if self.idle_since else "busy, newest"


def gangs_of(group: Group, pods: Iterable[Pod]) -> list[Gang]:
    """By name. With several hosts, pods that KubeRay did not label belong to none."""
    members: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        name = pod.gang if group.hosts > 1 else pod.name
        if name:
            members.setdefault(name, []).append(pod)
    named = frozenset(group.named)
    return [
        Gang(name, tuple(found), group.hosts, any(pod.name in named for pod in found))
        for name, found in sorted(members.items())
    ]


def victims(gangs: Iterable[Gang], count: int) -> list[Gang]:
    """Named ones first, which KubeRay may be deleting already; then what never served, the idle, the newest busy."""
    newest = sorted(gangs, key=lambda gang: (gang.created, gang.name), reverse=True)
    return sorted(newest, key=_rank)[: max(0, count)]


def _rank(gang: Gang) -> tuple[int, int, float]:
    """Smallest goes first; those of equal rank keep their order."""
    named = 0 if gang.is_named else 1
    if not gang.is_whole:
        return named, 0, 0.0
    if not gang.is_ready:
        return named, 1, 0.0
    if gang.idle_since is not None:
        return named, 2, gang.idle_since.timestamp()
    return named, 3, 0.0


@dataclass(frozen=True)
class Plan:
    """What is to become of one group. `must_wait`: nothing may be written yet."""

    cluster: Cluster
    group: Group
    wanted: int
    gangs: tuple[Gang, ...] = ()
    chosen: tuple[Gang, ...] = ()
    must_wait: bool = False

    @property
    def alive(self) -> list[Gang]:
        return [gang for gang in self.gangs if not gang.is_ending]

    @property
    def ending(self) -> list[Gang]:
        return [gang for gang in self.gangs if gang.is_ending]

    @property
    def whole(self) -> list[Gang]:
        return [gang for gang in self.gangs if gang.is_whole]

    @property
    def names(self) -> tuple[str, ...]:
        """workersToDelete: whole gangs, of pods that exist."""
        too_many = len(self.gangs) > self.wanted
        doomed = [*self.ending, *self.chosen] if too_many else [gang for gang in self.gangs if gang.is_torn]
        return tuple(sorted(pod.name for gang in doomed for pod in gang.pods))

    @property
    def is_done(self) -> bool:
        """KubeRay is told already. Names of pods that are gone are left until the next write: KubeRay might hear of an
        empty list before it hears that they are gone, and delete others instead."""
        existing = {pod.name for gang in self.gangs for pod in gang.pods}
        return self.group.replicas == self.wanted and existing & set(self.group.named) == set(self.names)

    @property
    def is_late(self) -> bool:
        """KubeRay is told, and has yet to make pods, to remove the rest of a gang, or to delete what is named."""
        has_parts = any(not gang.is_ending and not gang.is_whole for gang in self.gangs)
        return self.is_done and (has_parts or bool(self.chosen) or len(self.gangs) < self.wanted)

    @property
    def patch(self) -> list[dict[str, Any]]:
        """A JSON patch that fails if the cluster is not the one that was looked at. Empty: nothing to write."""
        if self.must_wait or self.is_done:
            return []
        base = f"/spec/workerGroupSpecs/{self.group.index}"
        strategy, names = f"{base}/scaleStrategy", list(self.names)
        tests = {"/metadata/uid": self.cluster.uid, "/metadata/generation": self.cluster.generation}
        operations = [{"op": "test", "path": path, "value": value} for path, value in tests.items()]
        operations.append({"op": "test", "path": f"{base}/groupName", "value": self.group.name})
        operations.append({"op": "add", "path": f"{base}/replicas", "value": self.wanted})
        if self.group.has_strategy:
            operations.append({"op": "add", "path": f"{strategy}/workersToDelete", "value": names})
        elif names:
            operations.append({"op": "add", "path": strategy, "value": {"workersToDelete": names}})
        return operations


def plan(cluster: Cluster, group: Group, pods: Sequence[Pod], wanted: int, is_patient: bool = True) -> Plan:
    """`pods` are those of the group, read after the cluster and right before this.

    A count falls only when the gangs of the present one are there: KubeRay, which may be making them now, would find
    one more than it was told of, and delete any. A patient caller comes again; KubeRay may be unable to make them.
    """
    gangs = gangs_of(group, pods)
    chosen = victims((gang for gang in gangs if not gang.is_ending), _surplus(gangs, wanted))
    is_making = len(gangs) < group.kuberay_count and not cluster.could_not_create
    must_wait = is_patient and is_making and wanted < group.kuberay_count
    return Plan(cluster, group, wanted, tuple(gangs), tuple(chosen), must_wait)


def _surplus(gangs: Sequence[Gang], wanted: int) -> int:
    return sum(not gang.is_ending for gang in gangs) - wanted
