"""One look after another, against an API that lives in memory: conflicts, refusals, and a KubeRay that sleeps."""

from __future__ import annotations

from typing import Any

import pytest

from llm_ray.scaler.kube import ConflictError, ForbiddenError, NotFoundError
from llm_ray.scaler.model import Autoscaler, Cluster, Key, Pod, Scale, parse_cluster, parse_pod, parse_scale
from llm_ray.scaler.reconcile import ATTEMPTS, LATE_S, LOOK_S, PATIENCE_S, Reconciler, RetryError
from tests.scaler.kuberay import GROUP, KubeRay

KEY = Key("ns", "wgs")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Api:
    """What the scaler calls, over one WorkerGroupScale and KubeRay's group."""

    def __init__(self, kuberay: KubeRay, replicas: int) -> None:
        self.kuberay = kuberay
        target = {"kind": "RayCluster", "name": "rc"}
        metadata = {"namespace": "ns", "name": "wgs", "uid": "u", "generation": 1, "creationTimestamp": "1"}
        self.scale: dict[str, Any] = {
            "metadata": metadata,
            "spec": {"target": target, "groupName": GROUP, "replicas": replicas},
        }
        self.events: dict[str, Any] = {}
        self.woken = self.conflicts = 0
        self.refusal: Exception | None = None

    def scales(self, namespace: str) -> list[Scale]:
        return [parse_scale(self.scale)]

    def cluster(self, namespace: str, name: str) -> Cluster:
        return parse_cluster(self.kuberay.body())

    def pods(self, namespace: str, cluster: str, group: str) -> tuple[list[Pod], str]:
        return [parse_pod(one.body(self.kuberay.hosts)) for one in self.kuberay.pods.values()], "1"

    def autoscalers(self, namespace: str) -> list[Autoscaler]:
        return []

    def patch_cluster(self, namespace: str, name: str, operations: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.conflicts:
            self.conflicts -= 1
            self.kuberay.generation += 1
        if not self.kuberay.apply(operations):
            raise ConflictError("the test failed")

    def wake(self, namespace: str, name: str, now: str) -> None:
        self.woken += 1

    def patch_status(self, key: Key, status: Any) -> None:
        self.scale["status"] = status

    def post_event(self, event: Any) -> None:
        if event["metadata"]["name"] in self.events:
            raise ConflictError("exists")
        self.events[event["metadata"]["name"]] = event

    def reason(self) -> str:
        return str(self.scale["status"]["conditions"][0]["reason"])


def made(hosts: int, count: int, replicas: int) -> tuple[Api, Reconciler, Clock]:
    kuberay = KubeRay(hosts, replicas=count)
    kuberay.reconcile()
    api, clock = Api(kuberay, replicas), Clock()
    return api, Reconciler(api, clock), clock  # type: ignore[arg-type]


def test_a_conflict_is_answered_by_another_look() -> None:
    api, reconciler, _ = made(1, 2, 4)
    api.conflicts = 2
    reconciler.reconcile(KEY)
    assert api.kuberay.replicas == 4


def test_a_cluster_that_changes_all_the_time_is_told_and_tried_again() -> None:
    api, reconciler, _ = made(1, 2, 4)
    api.refusal = ConflictError("the test failed")
    with pytest.raises(RetryError):
        reconciler.reconcile(KEY)
    assert api.reason() == "Conflict"
    assert f"{ATTEMPTS} times" in api.scale["status"]["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("refusal", "reason"), [(ForbiddenError("no right"), "Forbidden"), (NotFoundError("gone"), "Conflict")]
)
def test_a_refused_write_is_told(refusal: Exception, reason: str) -> None:
    api, reconciler, _ = made(1, 2, 4)
    api.refusal = refusal
    for _ in range(2):
        with pytest.raises(RetryError):
            reconciler.reconcile(KEY)
    assert api.reason() == reason
    assert [one["reason"] for one in api.events.values()] == [reason]


def test_kuberay_is_waited_for_but_not_for_ever() -> None:
    api, reconciler, clock = made(1, 2, 1)
    api.kuberay.rewrite(5)
    assert reconciler.reconcile(KEY) is not None
    assert api.kuberay.replicas == 5
    clock.now += PATIENCE_S
    reconciler.reconcile(KEY)
    assert api.kuberay.replicas == 1


def test_kuberay_is_woken_when_it_sleeps_over_half_a_gang() -> None:
    api, reconciler, clock = made(2, 2, 2)
    assert reconciler.reconcile(KEY) is None
    api.kuberay.end("gang-1-0")
    assert reconciler.reconcile(KEY) == LOOK_S
    clock.now += LATE_S
    reconciler.reconcile(KEY)
    reconciler.reconcile(KEY)
    assert api.woken == 1
    clock.now += LATE_S
    reconciler.reconcile(KEY)
    assert api.woken == 2
