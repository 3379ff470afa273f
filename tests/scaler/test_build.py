"""What is refused, what is told, and what the status says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_ray.scaler import report
from llm_ray.scaler.build import Decision, Seen, State, decide, wanted_count
from llm_ray.scaler.model import (
    Autoscaler,
    Cluster,
    Condition,
    Group,
    Key,
    Pod,
    Scale,
    Service,
    parse_autoscaler,
    parse_cluster,
    parse_pod,
    parse_scale,
    parse_service,
)  # fmt: skip

NOW = "2026-01-01T12:00:00Z"
SCALE = Scale(Key("ns", "wgs"), "uid", 3, "RayCluster", "rc", "gpu", 2, created="2026-01-01T00:00:00Z")
OF_SERVICE = replace(SCALE, target_kind="RayService", target="svc")


def cluster(name: str = "rc", *, replicas: int = 2, group: str = "gpu", **more: Any) -> Cluster:
    own = {key: more.pop(key) for key in ("min_replicas", "max_replicas", "hosts") if key in more}
    return Cluster(name, f"{name}-uid", 1, (Group(0, "cpu", 1), Group(1, group, replicas, **own)), **more)


def seen(count: int = 2, made: Cluster | None = None) -> Seen:
    return Seen(made or cluster(), tuple(Pod(f"p{number}") for number in range(count)))


def ready(state: State) -> Condition:
    return decide(state).ready


def refused(state: State, reason: str, *words: str) -> Decision:
    decision = decide(state)
    assert (decision.ready.status, decision.ready.reason) == ("False", reason)
    for word in words:
        assert word in decision.ready.message
    assert not any(one.patch for one in decision.plans)
    return decision


def test_a_missing_target_is_named() -> None:
    refused(State(SCALE), "TargetNotFound", "RayCluster rc does not exist", "nothing is scaled")


def test_a_service_without_a_cluster_is_not_ready() -> None:
    refused(State(OF_SERVICE, Service("svc")), "ClusterNotReady", "no RayCluster yet")
    refused(State(OF_SERVICE, Service("svc", "svc-x")), "ClusterNotReady", "svc-x does not exist")


@pytest.mark.parametrize(
    ("made", "reason", "words"),
    [
        (cluster(group="other"), "GroupNotFound", ["gpu", "cpu, other"]),
        (cluster(has_autoscaler=True), "InTreeAutoscalerEnabled", ["enableInTreeAutoscaling"]),
        (cluster(is_suspended=True), "GroupSuspended", ["RayCluster rc is suspended"]),
        (cluster(is_ending=True), "TargetNotFound", ["being deleted"]),
        (cluster(min_replicas=4, max_replicas=3), "InvalidBounds", ["4 to 3", "gpu"]),
        (cluster(hosts=2), "HostsUnlabelled", ["p0, p1", "1.6"]),
    ],
    ids=["group", "autoscaler", "suspended", "ending", "bounds of the group", "labels"],
)
def test_what_the_cluster_has_wrong_is_told(made: Cluster, reason: str, words: list[str]) -> None:
    refused(State(SCALE, clusters=(seen(2, made),)), reason, *words)


def test_a_suspended_group_is_left_alone() -> None:
    group = Group(0, "gpu", 2, is_suspended=True)
    refused(State(SCALE, clusters=(seen(0, Cluster("rc", "u", 1, (group,))),)), "GroupSuspended", "group gpu")


def test_bounds_that_exclude_each_other_are_refused() -> None:
    state = State(replace(SCALE, min_replicas=5, max_replicas=4), clusters=(seen(),))
    refused(state, "InvalidBounds", "spec.minReplicas (5)", "spec.maxReplicas (4)")
    apart = State(replace(SCALE, min_replicas=5), clusters=(seen(2, cluster(max_replicas=3)),))
    refused(apart, "InvalidBounds", "5 to no limit", "0 to 3")


@pytest.mark.parametrize(
    ("replicas", "own", "groups", "expected"),
    [(5, (0, 3), (0, 9), 3), (1, (2, 3), (0, 9), 2), (5, (0, 9), (0, 4), 4), (0, (0, 9), (1, 4), 1)],
)
def test_the_count_stays_within_both_limits(
    replicas: int, own: tuple[int, int], groups: tuple[int, int], expected: int
) -> None:
    scale = replace(SCALE, replicas=replicas, min_replicas=own[0], max_replicas=own[1])
    group = Group(0, "gpu", 1, min_replicas=groups[0], max_replicas=groups[1])
    assert wanted_count(scale, group) == expected


def test_a_second_object_for_the_same_group_is_refused() -> None:
    refused(State(SCALE, clusters=(seen(),), rival="first"), "Conflict", "WorkerGroupScale first", "delete one")


def test_a_successor_gets_the_count_at_once_and_the_serving_cluster_is_the_status() -> None:
    scale = replace(OF_SERVICE, replicas=4)
    old, new = seen(4, cluster("svc-old", replicas=4)), seen(1, cluster("svc-new", replicas=1))
    decision = decide(State(scale, Service("svc", "svc-old", "svc-new"), (old, new)))
    assert [(one.cluster.name, one.wanted, bool(one.patch)) for one in decision.plans] == [
        ("svc-old", 4, False), ("svc-new", 4, True),
    ]  # fmt: skip
    assert (decision.replicas, decision.selector) == (4, "ray.io/cluster=svc-old,ray.io/group=gpu")
    assert (decision.ready.reason, "svc-new" in decision.ready.message) == ("ScalingUp", True)


def test_a_successor_with_the_new_group_is_scaled_though_the_serving_cluster_lacks_it() -> None:
    old, new = seen(0, cluster("svc-old", group="other")), seen(1, cluster("svc-new", replicas=1))
    decision = decide(State(OF_SERVICE, Service("svc", "svc-old", "svc-new"), (old, new)))
    assert [one.cluster.name for one in decision.plans] == ["svc-new"]
    assert decision.ready.reason == "GroupNotFound"
    assert "RayCluster svc-new is scaled" in decision.ready.message


def test_conditions_follow_the_gangs() -> None:
    assert ready(State(SCALE, clusters=(seen(2),))).reason == "Scaled"
    assert ready(State(SCALE, clusters=(seen(1),))).reason == "ScalingUp"
    assert ready(State(SCALE, clusters=(seen(3, cluster(replicas=3)),))).reason == "ScalingDown"
    limited = ready(State(replace(SCALE, replicas=9, max_replicas=2), clusters=(seen(2),)))
    assert "spec.replicas (9) is outside" in limited.message


def hpa(status: str, reason: str, message: str = "no metrics returned") -> Autoscaler:
    return Autoscaler("h", "wgs", (Condition("ScalingActive", status, reason, message),))


@pytest.mark.parametrize(
    ("autoscalers", "status", "reason"),
    [
        ((), "Unknown", "NoAutoscaler"),
        ((hpa("True", "ValidMetricFound"),), "True", "ValidMetricFound"),
        ((hpa("False", "FailedGetExternalMetric"),), "False", "FailedGetExternalMetric"),
        ((hpa("False", "ScalingDisabled"),), "Unknown", "ScalingDisabled"),
        ((Autoscaler("h", "wgs"),), "Unknown", "NotReported"),
        ((replace(hpa("False", "X"), scale="other"),), "Unknown", "NoAutoscaler"),
        ((hpa("True", "ValidMetricFound"), hpa("False", "Failed")), "False", "Failed"),
    ],
)
def test_the_metrics_condition_is_what_the_autoscaler_says(
    autoscalers: tuple[Autoscaler, ...], status: str, reason: str
) -> None:
    found = report.metrics("wgs", autoscalers, None)
    assert (found.status, found.reason) == (status, reason)


def stored(scale: Scale, state: State) -> Scale:
    """The object after the status was written."""
    decision = decide(state)
    new = report.status(scale, (decision.ready, decision.metrics), decision.replicas, decision.selector, NOW)
    return replace(scale, status=new or scale.status)


def test_a_status_is_written_once_and_its_time_is_that_of_the_change() -> None:
    state = State(SCALE, clusters=(seen(),))
    scale = stored(SCALE, state)
    decision = decide(replace(state, scale=scale))
    new = (decision.ready, decision.metrics)
    assert report.status(scale, new, decision.replicas, decision.selector, "later") is None
    changed = report.status(scale, (replace(new[0], message="other"), new[1]), 2, decision.selector, "later")
    assert changed is not None
    assert [one["lastTransitionTime"] for one in changed["conditions"]] == [NOW, NOW]
    turned = report.status(scale, (replace(new[0], status="False"), new[1]), 2, decision.selector, "later")
    assert turned is not None
    assert [one["lastTransitionTime"] for one in turned["conditions"]] == ["later", NOW]


def test_conditions_of_others_are_kept() -> None:
    other = {"type": "Other", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": NOW}
    scale = replace(SCALE, status={"conditions": [other]})
    kept = report.conditions(scale, (Condition("Ready", "True", "Scaled"),), "later")
    assert [one.type for one in kept] == ["Ready", "Other"]


def test_each_turn_to_false_is_told_once() -> None:
    missing = State(SCALE)
    decision = decide(missing)
    [notice] = report.complaints(SCALE, (decision.ready, decision.metrics))
    assert (notice.reason, notice.is_warning) == ("TargetNotFound", True)
    assert report.complaints(stored(SCALE, missing), (decision.ready, decision.metrics)) == []
    other = Condition("Ready", "False", "GroupNotFound", "x")
    [again] = report.complaints(stored(SCALE, missing), (other,))
    assert again.occasion != notice.occasion


def test_a_scaling_is_told_with_who_goes_and_why() -> None:
    plan = decide(State(replace(SCALE, replicas=1), clusters=(seen(),))).plans[0]
    notice = report.told(plan)
    assert notice is not None
    assert (notice.reason, notice.is_warning) == ("ScalingDown", False)
    assert "2 → 1 gangs, removes p1 (busy, newest)" in notice.message


def test_objects_are_read_as_the_api_gives_them() -> None:
    scale = parse_scale(
        {
            "metadata": {"namespace": "ns", "name": "wgs", "uid": "u", "generation": 4, "creationTimestamp": NOW},
            "spec": {"target": {"kind": "RayService", "name": "svc"}, "groupName": "g", "replicas": 0, "maxReplicas": 3}
        }
    )  # fmt: skip
    assert (scale.replicas, scale.min_replicas, scale.max_replicas, scale.what) == (0, 0, 3, "RayService svc")
    service = parse_service(
        {"metadata": {"name": "svc"}, "status": {"pendingServiceStatus": {"rayClusterName": "svc-a"}}}
    )
    assert (service.active, service.pending) == ("", "svc-a")
    group = {"groupName": "gpu", "replicas": 2, "numOfHosts": 2, "scaleStrategy": {}}
    made = parse_cluster(
        {"metadata": {"name": "c", "uid": "u", "generation": 1}, "spec": {"workerGroupSpecs": [group]}}
    )
    assert (made.groups[0].hosts, made.groups[0].has_strategy, made.groups[0].named) == (2, True, ())
    pod = parse_pod({"metadata": {"name": "p"}, "status": {"phase": "Failed"}})
    assert (pod.is_ending, pod.is_ready) == (True, False)
    reference = {"apiVersion": "llm-ray.io/v1alpha1", "kind": "WorkerGroupScale", "name": "wgs"}
    found = parse_autoscaler({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": reference}})
    assert found.scale == "wgs"
    other = parse_autoscaler(
        {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "wgs"}}}
    )
    assert other.scale == ""


def test_a_patch_makes_the_strategy_where_there_is_none() -> None:
    state = State(replace(SCALE, replicas=1), clusters=(seen(),))
    [plan] = decide(state).plans
    assert plan.patch[-1] == {
        "op": "add", "path": "/spec/workerGroupSpecs/1/scaleStrategy", "value": {"workersToDelete": ["p1"]},
    }  # fmt: skip
    assert [one["path"] for one in plan.patch if one["op"] == "test"] == [
        "/metadata/uid", "/metadata/generation", "/spec/workerGroupSpecs/1/groupName",
    ]  # fmt: skip
