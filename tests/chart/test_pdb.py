"""Disruption budgets: what a drain may take, by the arithmetic of the eviction API."""

from __future__ import annotations

import pytest

from tests.support import kuberay
from tests.support.chart import HELMS, Objects, render
from tests.support.validate import KUBERNETES, validate


def evictable(objects: Objects, group: str, clusters: int = 1) -> int:
    """Pods of the group that the eviction API lets go while all are healthy. A whole number needs no /scale."""
    owner = next(o for o in objects if o["kind"] in ("RayCluster", "RayService"))
    pods = [pod for pod in kuberay.pods(owner, at="min") if pod.group == group] * clusters
    budgets = [b for b in objects.all("PodDisruptionBudget") if kuberay.matches(b["spec"]["selector"], pods[0].labels)]
    assert len(budgets) <= 1, "the eviction API refuses a pod with two budgets"
    for budget in budgets:
        assert isinstance(budget["spec"]["minAvailable"], int)
        assert "maxUnavailable" not in budget["spec"]
    return len(pods) - sum(budget["spec"]["minAvailable"] for budget in budgets)


TP16 = {"engine": {"tensorParallelSize": 16}, "workerDefaults": {"gpusPerNode": 8}}


@pytest.mark.parametrize(
    ("group", "pods"),
    [
        ({"replicas": 2}, 2),
        ({"replicas": 3}, 2),
        ({"replicas": 5}, 2),
        ({"replicas": 3, "gpusPerNode": 4}, 4),
        ({"replicas": 3, "gpusPerNode": 16}, 1),
    ],
)
def test_a_drain_may_take_the_pods_of_one_whole_group(group, pods):
    objects = render(TP16 | {"workers": {"gpu": group}})
    assert evictable(objects, "gpu") == pods


@pytest.mark.parametrize(
    "group", [{"replicas": 1}, {"replicas": 3, "pdb": {"enabled": False}}, {"replicas": 3, "suspend": True}]
)
def test_without_two_groups_there_is_no_budget(group):
    assert not render(TP16 | {"workers": {"gpu": group}}).all("PodDisruptionBudget")


def test_the_smallest_size_counts_where_something_scales():
    values = TP16 | {"autoscaling": {"mode": "serve"}}
    scaled = render(values | {"workers": {"gpu": {"replicas": 4, "minReplicas": 2, "maxReplicas": 6}}})
    assert evictable(scaled, "gpu") == 2
    assert not render(values | {"workers": {"gpu": {"replicas": 4, "minReplicas": 1, "maxReplicas": 6}}}).all(
        "PodDisruptionBudget"
    )


def test_each_group_has_a_budget_of_its_own():
    objects = render({"workers": {"a": {"replicas": 2}, "b": {"replicas": 4}, "c": {"replicas": 1}}})
    assert [name for kind, name in objects.inventory() if kind == "PodDisruptionBudget"] == [
        "demo-llm-ray-worker-a",
        "demo-llm-ray-worker-b",
    ]
    assert [evictable(objects, group) for group in "abc"] == [1, 1, 1]


def test_while_two_clusters_run_the_pods_of_one_more_may_go():
    objects = render(TP16 | {"kind": "RayService", "workers": {"gpu": {"replicas": 3}}})
    assert evictable(objects, "gpu", clusters=2) == 2 + 3 * 2


def test_the_head_is_evictable_unless_asked_otherwise():
    assert evictable(render(), "headgroup") == 1
    assert evictable(render({"head": {"pdb": {"enabled": True}}}), "headgroup") == 0


def test_unready_pods_never_block_a_drain():
    objects = render({"head": {"pdb": {"enabled": True}}, "workerDefaults": {"replicas": 2}})
    budgets = objects.all("PodDisruptionBudget")
    assert len(budgets) == 2
    assert {budget["spec"]["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}


def test_budgets_are_valid_and_the_same_from_both_helms():
    values = {"head": {"pdb": {"enabled": True}}, "workers": {"a": {"replicas": 2}, "b-b": {"replicas": 12}}}
    made = [render(values, release="r" * 53, helm=helm).all("PodDisruptionBudget") for helm in HELMS]
    assert made[0] == made[1]
    assert len(made[0]) == 3
    for budget in made[0]:
        assert len(budget["metadata"]["name"]) <= 63
        assert [validate(budget, kubernetes=minor) for minor in KUBERNETES] == [[]] * len(KUBERNETES)
