"""Gang scheduling by one provider at a time; how large the gang is, is in test_gang_size."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import HelmError, render
from tests.support.gang import TWO_NODES, gang, owner, templates
from tests.support.validate import validate

GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"


def test_without_a_provider_nothing_is_scheduled_as_a_gang() -> None:
    objects = render(TWO_NODES)
    assert not objects.all("PodGroup")
    for template in templates(objects).values():
        assert "schedulerName" not in template["spec"]
        assert GROUP_NAME not in template["metadata"].get("annotations", {})
    assert not [label for label in owner(objects)["metadata"]["labels"] if "volcano" in label or "kueue" in label]


@pytest.mark.parametrize(
    ("scheduler", "wanted"),
    [
        (
            "volcano",
            {
                "volcano.sh/queue-name": "team",
                "ray.io/priority-class-name": "high",
                "volcano.sh/network-topology-mode": "hard",
                "volcano.sh/network-topology-highest-tier-allowed": "2",
            },
        ),
        (
            "yunikorn",
            {
                "yunikorn.apache.org/app-id": "serving-demo-llm-ray",
                "yunikorn.apache.org/queue": "team",
                "ray.io/gang-scheduling-enabled": "true",
            },
        ),
        ("kai-scheduler", {"kai.scheduler/queue": "team"}),
    ],
)
@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
def test_the_operators_scheduler_is_told_by_labels_of_the_owner_alone(
    kind: str, scheduler: str, wanted: dict[str, str]
) -> None:
    topology = {"networkTopology": {"mode": "hard", "highestTierAllowed": 2}} if scheduler == "volcano" else {}
    priority = {"priorityClassName": "high"} if scheduler == "volcano" else {}
    plain = render(TWO_NODES | {"kind": kind})
    objects = render(
        TWO_NODES | {"kind": kind} | gang("kuberay", scheduler=scheduler, queue="team", **topology, **priority)
    )
    labels = owner(objects)["metadata"]["labels"]
    assert {k: v for k, v in labels.items() if k not in owner(plain)["metadata"]["labels"]} == wanted
    checks = 1 if scheduler == "volcano" else 0  # of the queue: gone before the cluster is there
    assert len(objects.all("PodGroup")) == checks
    assert templates(objects) == templates(plain)


def test_a_podgroup_of_ours_holds_every_pod_of_the_cluster() -> None:
    values = TWO_NODES | {"workers": {"gpu": {"gpusPerNode": 8}, "spare": {"gpusPerNode": 8}}}
    objects = render(values | gang("podgroup", queue="team", priorityClassName="high"))
    pod_group = objects.find("PodGroup")
    name = pod_group["metadata"]["name"]
    assert validate(pod_group) == []
    assert pod_group["spec"]["queue"] == "team"
    assert pod_group["spec"]["priorityClassName"] == "high"
    assert pod_group["metadata"]["namespace"] == owner(objects)["metadata"]["namespace"]
    assert name != f"ray-{owner(objects)['metadata']['name']}-pg"
    for group, template in templates(objects).items():
        assert template["spec"]["schedulerName"] == "volcano"
        assert template["metadata"]["annotations"][GROUP_NAME] == name
        assert template["metadata"]["annotations"][TASK_SPEC] == group
    assert not [label for label in owner(objects)["metadata"]["labels"] if "volcano" in label]


def test_each_group_of_hosts_may_be_kept_in_one_network_domain() -> None:
    topology = {"mode": "hard", "highestTierAllowed": 2}
    values = TWO_NODES | {"workers": TWO_NODES["workers"] | {"one": {"gpusPerNode": 16}}}
    spec = render(values | gang("podgroup", subGroups=True, networkTopology=topology)).find("PodGroup")["spec"]
    assert spec["subGroupPolicy"] == [
        {
            "name": "gpu",
            "labelSelector": {"matchLabels": {"ray.io/group": "gpu"}},
            "matchLabelKeys": ["ray.io/worker-group-replica-name"],
            "subGroupSize": 2,
            "minSubGroups": 2,
            "networkTopology": topology,
        }
    ]
    assert "networkTopology" not in spec


def test_without_subgroups_the_topology_is_that_of_the_whole_gang() -> None:
    spec = render(TWO_NODES | gang("podgroup", networkTopology={"mode": "soft"})).find("PodGroup")["spec"]
    assert spec["networkTopology"] == {"mode": "soft"}
    assert "subGroupPolicy" not in spec


def test_kueue_finds_its_queue_on_the_owner_and_the_topology_on_the_workers() -> None:
    topology = {"requiredTopology": "cloud.provider.com/rack"}
    objects = render(TWO_NODES | gang("kueue", queue="team", priorityClassName="high", kueue=topology))
    labels = owner(objects)["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "team"
    assert labels["kueue.x-k8s.io/priority-class"] == "high"
    found = {name: t["metadata"].get("annotations", {}) for name, t in templates(objects).items()}
    assert found["gpu"]["kueue.x-k8s.io/podset-required-topology"] == "cloud.provider.com/rack"
    assert "kueue.x-k8s.io/podset-required-topology" not in found["headgroup"]
    assert "kueue.x-k8s.io/elastic-job" not in owner(objects)["metadata"].get("annotations", {})
    assert not objects.all("PodGroup")
    assert "schedulerName" not in templates(objects)["gpu"]["spec"]


def test_kueue_may_resize_an_elastic_job() -> None:
    values = {
        "autoscaling": {"mode": "serve", "allowReplicaReset": True},
        "kind": "RayCluster",
        "workers": {"gpu": {"gpusPerNode": 16, "maxReplicas": 2}},
    }
    objects = render(TWO_NODES | values | gang("kueue", queue="team", kueue={"elastic": True}))
    assert owner(objects)["metadata"]["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a queue for nobody": (gang("none", queue="team"), "gang.queue (team) must be empty while gang.provider is none"),
    "a PodGroup for two clusters": (
        TWO_NODES | {"kind": "RayService"} | gang("podgroup"),
        "gang.provider (podgroup) must be kuberay with kind RayService and rollout.strategy blueGreen",
    ),
    "no LocalQueue": (gang("kueue"), 'gang.queue ("") must name a LocalQueue'),
    "Kueue and another owner of the size": (
        {"kind": "RayCluster", "autoscaling": {"mode": "serve", "allowReplicaReset": True}}
        | gang("kueue", queue="team"),
        "gang.kueue.elastic (false) must be true with autoscaling.mode serve",
    ),
    "more groups than pod sets": (
        {"workers": {f"g{i}": {} for i in range(18)}} | gang("kueue", queue="team"),
        "workers (18 groups) must be at most 17 groups",
    ),
    "two topologies": (
        gang("kueue", queue="team", kueue={"requiredTopology": "rack", "preferredTopology": "block"}),
        "gang.kueue.preferredTopology (block) must be empty beside",
    ),
    "a RayService that cannot wait": (
        TWO_NODES | {"kind": "RayService"} | gang("kueue", queue="team"),
        "gang.provider (kueue) must go with kind RayCluster on KubeRay 1.6",
    ),
    "Kueue's keys without Kueue": (
        gang("podgroup", kueue={"requiredTopology": "rack"}),
        "gang.kueue.requiredTopology (rack) must be unset with gang.provider podgroup",
    ),
    "topology without Volcano": (
        gang("kuberay", scheduler="yunikorn", networkTopology={"mode": "hard"}),
        "gang.networkTopology.mode (hard) must be empty without Volcano",
    ),
    "a tier without a mode": (
        gang("podgroup", networkTopology={"highestTierAllowed": 2}),
        "gang.networkTopology.highestTierAllowed (2) must come with gang.networkTopology.mode",
    ),
    "subgroups by the operator": (
        TWO_NODES | gang("kuberay", subGroups=True, networkTopology={"mode": "hard"}),
        "gang.subGroups (true) must be false with gang.provider kuberay",
    ),
    "subgroups for nothing": (TWO_NODES | gang("podgroup", subGroups=True), "gang.subGroups (true) must come with"),
    "subgroups of one pod": (
        gang("podgroup", subGroups=True, networkTopology={"mode": "hard"}),
        "gang.subGroups (true) must be false where no worker group has more than one host",
    ),
    "subgroups without labels": (
        TWO_NODES
        | {"kuberay": {"version": "1.5"}}
        | gang("podgroup", subGroups=True, networkTopology={"mode": "hard"}),
        "gang.subGroups (true) must be false on KubeRay 1.5",
    ),
    "a class that KAI does not read": (
        gang("kuberay", scheduler="kai-scheduler", priorityClassName="high"),
        "gang.priorityClassName (high) must be empty with gang.scheduler kai-scheduler",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_gang_that_would_never_start_is_refused(case: str) -> None:
    values, message = REFUSED[case]
    with pytest.raises(HelmError) as refusal:
        render(values)
    assert message in refusal.value.message


def test_a_rayservice_without_a_second_cluster_may_have_a_podgroup() -> None:
    values = TWO_NODES | {"kind": "RayService", "rollout": {"strategy": "none"}} | gang("podgroup")
    assert render(values).find("PodGroup")["spec"]["minMember"] == 5


@pytest.mark.parametrize("name", ["on", "no", "null", "y"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str) -> None:
    topology = {"mode": "hard"}
    values = {"engine": {"tensorParallelSize": 2}, "workers": {name: {"gpusPerNode": 1}}}
    objects = render(values | gang("podgroup", queue=name, subGroups=True, networkTopology=topology))
    [policy] = objects.find("PodGroup")["spec"]["subGroupPolicy"]
    assert policy["name"] == policy["labelSelector"]["matchLabels"]["ray.io/group"] == name
    assert objects.find("PodGroup")["spec"]["queue"] == name
    assert templates(objects)[name]["metadata"]["annotations"][TASK_SPEC] == name
    assert validate(objects.find("PodGroup")) == validate(owner(objects)) == []


def test_names_stay_within_their_limits_with_the_longest_release() -> None:
    release = "r" * 53
    objects = render(TWO_NODES | gang("podgroup"), release=release)
    assert len(objects.find("PodGroup")["metadata"]["name"]) <= 63
    labels = owner(render(TWO_NODES | gang("kuberay", scheduler="yunikorn"), release=release, namespace="n" * 63))[
        "metadata"
    ]
    assert len(labels["labels"]["yunikorn.apache.org/app-id"]) <= 63
