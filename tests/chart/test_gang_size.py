"""A PodGroup of ours is exactly as large as the cluster that KubeRay makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import kuberay, operator
from tests.support.chart import Objects, render
from tests.support.gang import TWO_NODES, gang, owner

ONE_REPLICA = {"replicas": 1, "minReplicas": 1, "maxReplicas": 1}


def amounts(pod_group: dict[str, Any]) -> kuberay.Amounts:
    return {name: kuberay.quantity(q) for name, q in pod_group["spec"]["minResources"].items()}


def pods(objects: Objects) -> list[dict[str, Any]]:
    """The pods that KubeRay's own code makes of the chart's objects."""
    [verdict] = operator.judge([owner(objects)])
    assert verdict.error == ""
    return verdict.pods


def reserved(pod: dict[str, Any]) -> kuberay.Amounts:
    return kuberay.requested(kuberay.Pod("", {}, {}, pod["spec"], {}))


SIZES = {
    "one pod": ({}, 2),
    "two nodes, twice": (TWO_NODES, 5),
    "a suspended group": (
        TWO_NODES | {"workers": {"gpu": {"gpusPerNode": 8}, "off": {"gpusPerNode": 8, "suspend": True}}},
        3,
    ),
    "no workers yet": (TWO_NODES | {"workers": {"gpu": {"gpusPerNode": 8, "replicas": 0}}}, 1),
    "the least that Ray's autoscaler keeps": (
        TWO_NODES
        | {
            "kind": "RayService",
            "rollout": {"strategy": "none"},
            "autoscaling": {"mode": "serve"},
            "workers": {"gpu": {"gpusPerNode": 8, "minReplicas": 1, "maxReplicas": 4, "replicas": 3}},
        },
        3,
    ),
    "a count that specOverrides changes": (TWO_NODES | {"specOverrides": {"workerGroups": {"gpu": ONE_REPLICA}}}, 3),
}


@pytest.mark.parametrize("case", SIZES)
def test_the_gang_is_as_large_as_the_cluster_that_kuberay_makes(case: str) -> None:
    values, members = SIZES[case]
    objects = render(values | gang("podgroup"))
    assert objects.find("PodGroup")["spec"]["minMember"] == members
    assert len(pods(objects)) == members


def test_its_resources_are_those_of_all_containers_in_all_pods() -> None:
    values = TWO_NODES | {
        "workers": {
            "gpu": {"gpusPerNode": 8, "extraContainers": {"tap": container(cpu="0.25", memory="100M")}},
            "tall": {"gpusPerNode": 16, "replicas": 3, "resources": {"limits": {"cpu": 17.5, "memory": "1.5Gi"}}},
        },
        "head": {"extraContainers": {"tap": container(cpu="100m", memory="0.1Gi", **{"example.com/thing": 3})}},
        "fabric": {
            "type": "sriov",
            "networks": {"rail0": {"resourceName": "nvidia.com/rail", "count": 2, "ipam": {"range": "10.0.0.0/16"}}},
        },
    }
    objects = render(values | gang("podgroup"))
    found = amounts(objects.find("PodGroup"))
    assert found == kuberay.summed(map(reserved, pods(objects)))
    assert found["nvidia.com/gpu"] == 2 * 8 + 3 * 16
    assert found["nvidia.com/rail"] == 2 * 5
    assert found["example.com/thing"] == 3


def container(**requests: Any) -> dict[str, Any]:
    return {"image": "registry.example.com/tap:1", "resources": {"requests": requests}}


def test_the_autoscaler_beside_the_head_is_counted() -> None:
    requests = {"cpu": "300m", "memory": "700Mi"}
    values = TWO_NODES | {
        "kind": "RayService",
        "rollout": {"strategy": "none"},
        "workers": {"gpu": {"gpusPerNode": 8, "replicas": 2, "maxReplicas": 4}},
        "autoscaling": {"mode": "serve", "serve": {"resources": {"requests": requests, "limits": requests}}},
    }
    objects = render(values | gang("podgroup"))
    assert "autoscaler" in [c["name"] for c in pods(objects)[0]["spec"]["containers"]]
    assert amounts(objects.find("PodGroup")) == kuberay.summed(map(reserved, pods(objects)))


def test_an_init_container_counts_where_it_asks_for_more_than_the_containers_after_it() -> None:
    values = TWO_NODES | {"head": {"extraInitContainers": {"big": container(cpu="64", memory="1Mi")}}}
    objects = render(values | gang("podgroup"))
    found = amounts(objects.find("PodGroup"))
    assert found == kuberay.summed(map(reserved, pods(objects)))
    assert found["cpu"] > 64 > amounts(render(TWO_NODES | gang("podgroup")).find("PodGroup"))["cpu"]


NUMBERS = st.one_of(
    st.integers(1, 10**6).map(str),
    st.integers(1, 500),
    st.decimals(min_value="0.001", max_value=9999, places=3, allow_nan=False).map(str),
)
SUFFIXES = st.sampled_from(["", "m", "k", "M", "Mi", "Ki", "G", "Gi"])


@st.composite
def quantities(draw: st.DrawFn) -> str | int:
    number = draw(NUMBERS)
    if isinstance(number, int):
        return number
    suffix = draw(SUFFIXES)
    return number.split(".")[0] + suffix if suffix == "m" else number + suffix


@settings(deadline=None, max_examples=40)
@example(["1000000G", "1Pi"])
@given(st.lists(quantities(), min_size=1, max_size=6))
def test_quantities_of_any_form_add_up(given_quantities: list[str | int]) -> None:
    taps = {f"tap{i}": container(**{"example.com/thing": q}) for i, q in enumerate(given_quantities)}
    objects = render({"workers": {"worker": {"replicas": 3, "extraContainers": taps}}} | gang("podgroup"))
    exact = 3 * sum(map(kuberay.quantity, given_quantities)) * 1000
    found = amounts(objects.find("PodGroup"))["example.com/thing"] * 1000
    assert exact <= found <= exact + 3 * len(given_quantities)  # each is rounded up to a thousandth
