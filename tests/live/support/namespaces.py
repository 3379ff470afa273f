"""Namespaces of a test: made with their labels, gone before the next test, or a report of what holds them."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.live.support.cluster import Cluster
from tests.live.support.waiting import WaitError, describe_pod

GONE_S = 150.0
PODS_GRACE_S = 1
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


@dataclass
class Namespaces:
    """Which namespaces of this run exist now; what is in them is kept when a test fails."""

    cluster: Cluster
    open: list[str] = field(default_factory=list)
    ending: dict[str, float] = field(default_factory=dict)
    """Name → when it has to be gone (monotonic). Their pods are gone already."""

    @contextmanager
    def make(self, stem: str, labels: Mapping[str, str] | None = None, gone_s: float | None = None) -> Iterator[str]:
        """A fresh namespace, ready for pods. With `gone_s` it is gone when this returns, else by `settle`."""
        name = unique_name(stem)
        metadata = {"name": name, "labels": {"llm-ray.io/test": "true", **(labels or {})}}
        self.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.open.append(name)
        try:
            self._wait_for_account(name)
            yield name
        finally:
            self.remove(name)
            if gone_s is not None:
                self.wait_until_gone(name, gone_s)

    def remove(self, name: str) -> None:
        """Start its end, and wait for its pods': then there is room. For the rest Kubernetes takes 5 s and more."""
        self.cluster.delete("Namespace", name)
        deadline = time.monotonic() + GONE_S
        while self.cluster.pods(name):
            self.cluster.delete_all("Pod", name, PODS_GRACE_S)
            if time.monotonic() > deadline:
                raise WaitError(f"pods of namespace {name} stay for {GONE_S:g} s:\n{leftovers(self.cluster, name)}")
            time.sleep(0.5)
        self.open.remove(name)
        self.ending[name] = deadline

    def settle(self) -> None:
        """Wait for all that are ending. WaitError with what holds those that stay."""
        for name, deadline in list(self.ending.items()):
            self.wait_until_gone(name, deadline - time.monotonic())

    def wait_until_gone(self, name: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.cluster.get("Namespace", name) is not None:
            if time.monotonic() > deadline:
                held = leftovers(self.cluster, name)
                raise WaitError(f"namespace {name} is not gone {max(0, seconds):.0f} s after it was deleted:\n{held}")
            time.sleep(0.5)
        self.ending.pop(name, None)

    def _wait_for_account(self, name: str) -> None:
        """Pods are refused until the controller has made the default service account."""
        deadline = time.monotonic() + 30
        while self.cluster.get("ServiceAccount", "default", name) is None:
            if time.monotonic() > deadline:
                raise WaitError(f"namespace {name} has no default service account after 30 s: no controller manager?")
            time.sleep(0.1)


def unique_name(stem: str) -> str:
    """At most 40 characters, so that names made from it stay within 63."""
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower().removeprefix("test_")).strip("-")
    return f"{plain[:33].strip('-')}-{uuid.uuid4().hex[:6]}"


def leftovers(cluster: Cluster, namespace: str) -> str:
    """What keeps a namespace from going: its conditions, the objects in it and their finalizers."""
    found = cluster.get("Namespace", namespace) or {}
    conditions = (found.get("status") or {}).get("conditions") or []
    told = [f"  {one['type']}={one['status']}: {one.get('message', '')}" for one in conditions]
    told += [f"  {name}" for name in sorted(cluster.inventory(namespace))]
    for pod in cluster.pods(namespace):
        told.append(f"  pod {describe_pod(pod)}, finalizers {pod['metadata'].get('finalizers') or 'none'}")
    return "\n".join(told)
