"""What the scaler says of bad input, missing rights and missing metrics: a condition with the fix, and an event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from tests.live.support.cluster import Cluster, Object
from tests.live.support.fake_nodes import FakeNodes, pool
from tests.live.support.scaler import (
    HPA,
    SCALE,
    Scaler,
    Target,
    cluster_spec,
    install_crd,
    ray_cluster,
    running,
    worker_group_scale,
)  # fmt: skip
from tests.live.support.upgrades import RAY_CLUSTER
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "kwok")]

SOON_S = 60
HPA_S = 90
"""The HPA controller looks every 15 s."""


@pytest.fixture(scope="module", autouse=True)
def _crd(cluster: Cluster) -> None:
    install_crd(cluster)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    with pool(cluster) as made:
        made.add()
        yield made


@pytest.fixture
def scaler(nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scaler]:
    """The nodes come before the namespace, and so go after it."""
    with running(cluster, namespace, tmp_path) as made:
        yield made


def told(
    target: Target, wait: Waiter, reason: str, *words: str, type: str = "Ready", seconds: float = SOON_S
) -> Object:
    """The condition, once it is False for that reason; there is an event of the same."""

    def is_told() -> Object | None:
        found = target.conditions().get(type) or {}
        return found if (found.get("status"), found.get("reason")) == ("False", reason) else None

    found: Object = wait(f"{type} False {reason}", is_told, seconds, last_seen=target.conditions)
    for word in words:
        assert word in found["message"]

    def is_posted() -> bool:
        events = [one for one in target.events() if one["reason"] == reason]
        return any(one["type"] == "Warning" and words[0] in one["message"] for one in events)

    wait(f"an event {reason}", is_posted, SOON_S, last_seen=target.events)
    return found


def scaled(target: Target, wait: Waiter, count: int) -> None:
    def is_scaled() -> bool:
        return target.ready()[0] == "Scaled" and len(target.gangs()) == count

    wait(f"{count} gangs of {target.name}", is_scaled, SOON_S, last_seen=target.ready)


def hpa(name: str, kind: str, api: str, target: str, metric: str) -> Object:
    external = {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": "30"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": target},
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "External", "external": external}],
        },
    }


def test_bad_input_is_refused_with_a_reason_and_an_event_and_mended_once_it_is_corrected(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1, 2)), namespace)
    bad = {
        "unknown-group": worker_group_scale("unknown-group", "rc", groupName="nosuch", replicas=5),
        "gone": worker_group_scale("gone", "nosuch", replicas=5),
        "no-service": worker_group_scale("no-service", "rc", "RayService", replicas=5),
        "apart": worker_group_scale("apart", "rc", replicas=9, minReplicas=9),
    }
    for one in bad.values():
        cluster.create(one, namespace)
    targets = {name: Target(cluster, namespace, name, 1) for name in bad}
    told(targets["unknown-group"], wait, "GroupNotFound", "nosuch", "which has gpu", "nothing is scaled")
    told(targets["gone"], wait, "TargetNotFound", "RayCluster nosuch does not exist")
    told(targets["no-service"], wait, "TargetNotFound", "RayService rc does not exist")
    told(targets["apart"], wait, "InvalidBounds", "9 to no limit", "0 to 8")
    assert (cluster.get(RAY_CLUSTER, "rc", namespace) or {})["spec"]["workerGroupSpecs"][0]["replicas"] == 2

    cluster.delete(SCALE, "apart", namespace)
    cluster.create(ray_cluster("nosuch", cluster_spec(nodes, 1, 1)), namespace)
    late = Target(cluster, namespace, "gone", 1)
    wait("Scaled", lambda: late.ready()[0] == "Scaled", SOON_S, last_seen=late.ready)
    assert late.scale()["status"]["replicas"] == 5

    cluster.delete(RAY_CLUSTER, "nosuch", namespace)
    told(late, wait, "TargetNotFound", "RayCluster nosuch")


def test_the_api_server_refuses_bounds_the_wrong_way_round(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ApiException) as refused:
        cluster.create(worker_group_scale("w", minReplicas=3, maxReplicas=2), namespace)
    assert "spec.minReplicas must not be greater than spec.maxReplicas" in str(refused.value.body)


def test_what_ray_scales_itself_or_is_suspended_is_left_alone(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    own = cluster_spec(nodes, 1, 2) | {"enableInTreeAutoscaling": True}
    own["autoscalerOptions"] = {"version": "v1"}
    cluster.create(ray_cluster("own", own), namespace)
    cluster.create(ray_cluster("rests", cluster_spec(nodes, 1, 2, suspend=True)), namespace)
    for name in ("own", "rests"):
        cluster.create(worker_group_scale(name, replicas=4), namespace)
    told(Target(cluster, namespace, "own", 1), wait, "InTreeAutoscalerEnabled", "enableInTreeAutoscaling")
    told(Target(cluster, namespace, "rests", 1), wait, "GroupSuspended", "group gpu")
    counts = [Target(cluster, namespace, name, 1).group()["replicas"] for name in ("own", "rests")]
    assert counts == [2, 2]


def test_of_two_for_one_group_the_first_is_carried_out(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1)), namespace)
    cluster.create(worker_group_scale("rc", replicas=3), namespace)
    first, second = Target(cluster, namespace, "rc", 1), Target(cluster, namespace, "second", 1)
    scaled(first, wait, 3)
    time.sleep(1)  # an object's age is in seconds
    cluster.create(worker_group_scale("second", "rc", replicas=1), namespace)
    told(second, wait, "Conflict", "WorkerGroupScale rc", "delete one")
    scaled(first, wait, 3)
    cluster.delete(SCALE, "rc", namespace)
    wait("the second's turn", lambda: len(first.gangs()) == 1, SOON_S)


@pytest.mark.parametrize(("right", "needed"), [("rayclusters", "get rayclusters.ray.io"), ("pods", "list pods")])
def test_a_missing_right_is_named(
    right: str, needed: str, nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1, 2)), namespace)
    cluster.create(worker_group_scale("rc", replicas=4), namespace)
    target = Target(cluster, namespace, "rc", 1)
    with running(cluster, namespace, tmp_path, **{right: False}):
        told(target, wait, "Forbidden", needed, "must be allowed to", "Role")
        assert target.group()["replicas"] == 2


def test_a_missing_right_to_see_autoscalers_stops_no_scaling(
    nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1, 2)), namespace)
    cluster.create(worker_group_scale("rc", replicas=4), namespace)
    target = Target(cluster, namespace, "rc", 1)
    with running(cluster, namespace, tmp_path, hpas=False):
        scaled(target, wait, 4)
        metrics = target.conditions()["MetricsAvailable"]
        assert (metrics["status"], metrics["reason"]) == ("Unknown", "Forbidden")
        assert "list horizontalpodautoscalers.autoscaling" in metrics["message"]


def test_missing_metrics_are_told_and_nothing_is_scaled(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1)), namespace)
    cluster.create(worker_group_scale("rc", replicas=3), namespace)
    target = Target(cluster, namespace, "rc", 1)
    scaled(target, wait, 3)
    metric = "llm_ray_nobody_serves_this"
    cluster.create(hpa("rc", "WorkerGroupScale", "llm-ray.io/v1alpha1", "rc", metric), namespace)
    words = ("HorizontalPodAutoscaler rc", metric, "replicas stay", "kubectl get apiservices")
    told(target, wait, "FailedGetExternalMetric", *words, type="MetricsAvailable", seconds=HPA_S)
    assert target.scale()["spec"]["replicas"] == 3
    scaled(target, wait, 3)
    status: Any = (cluster.get(HPA, "rc", namespace) or {})["status"]
    conditions = {one["type"]: one for one in status["conditions"]}
    assert conditions["AbleToScale"]["status"] == "True"
    assert conditions["ScalingActive"]["reason"] == "FailedGetExternalMetric"


def test_an_autoscaler_of_a_raycluster_or_rayservice_gets_no_scale(
    cluster: Cluster, nodes: FakeNodes, namespace: str, wait: Waiter
) -> None:
    """Why the chart refuses it: the API server has no such subresource."""
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 1)), namespace)
    service = {"serveConfigV2": "applications: []\n", "rayClusterConfig": cluster_spec(nodes, 1)}
    body = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "rs"}, "spec": service}
    cluster.create(body, namespace)
    for kind, name in (("RayCluster", "rc"), ("RayService", "rs")):
        cluster.create(hpa(name, kind, "ray.io/v1", name, "any"), namespace)

    def reasons() -> dict[str, str]:
        found = {}
        for one in cluster.list(HPA, namespace):
            for condition in (one.get("status") or {}).get("conditions") or []:
                if condition["type"] == "AbleToScale":
                    found[one["metadata"]["name"]] = f"{condition['status']} {condition['reason']}"
        return found

    wanted = {"rc": "False FailedGetScale", "rs": "False FailedGetScale"}
    wait("FailedGetScale", lambda: reasons() == wanted, HPA_S, last_seen=reasons)
