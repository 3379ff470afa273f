"""`specOverrides`: any field of KubeRay's API, laid over what the chart renders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import render
from tests.support.validate import validate


def cluster(overrides: dict[str, Any], **values: Any) -> dict[str, Any]:
    obj = render({"specOverrides": overrides, **values}).find("RayCluster")
    assert validate(obj) == []
    return dict(obj["spec"])


def test_maps_merge_and_scalars_and_lists_replace():
    override = {"template": {"spec": {"dnsPolicy": "Default", "tolerations": [{"operator": "Exists"}]}}}
    values = {"head": {"tolerations": [{"key": "a"}, {"key": "b"}]}}
    pod = cluster({"headGroup": override}, **values)["headGroupSpec"]["template"]["spec"]
    assert (pod["dnsPolicy"], pod["tolerations"]) == ("Default", [{"operator": "Exists"}])
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_false_zero_and_empty_are_values():
    override = {"template": {"spec": {"enableServiceLinks": False, "terminationGracePeriodSeconds": 0, "volumes": []}}}
    pod = cluster({"headGroup": override})["headGroupSpec"]["template"]["spec"]
    assert (pod["enableServiceLinks"], pod["terminationGracePeriodSeconds"]) == (False, 0)
    assert "volumes" not in pod, "an empty list is written as the API writes it"


@pytest.mark.parametrize("helm", ["helm3", "helm4"])
def test_null_says_nothing_in_both_helms(helm):
    values = {"specOverrides": {"headGroup": {"template": {"spec": {"dnsPolicy": None}}}}}
    spec = render(values, helm=helm).find("RayCluster")["spec"]
    assert spec["headGroupSpec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"


def test_containers_merge_by_name_and_new_ones_come_last():
    change = {
        "name": "ray-worker",
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": {"limits": {"cpu": 3}},
    }
    new = {"name": "side", "image": "busybox:1.36"}
    fetch = {"name": "fetch-model", "env": [{"name": "A", "value": "b"}]}
    override = {"template": {"spec": {"containers": [new, change], "initContainers": [fetch]}}}
    [group] = cluster({"workerGroups": {"worker": override}})["workerGroupSpecs"]
    plain, side = group["template"]["spec"]["containers"]
    assert (plain["name"], side) == ("ray-worker", new | {"resources": {}})
    assert plain["lifecycle"] == change["lifecycle"]
    assert plain["resources"]["limits"] == {"cpu": "3", "memory": "4Gi"}
    assert plain["image"].startswith("llm-ray/llm-ray:")
    [init] = group["template"]["spec"]["initContainers"]
    assert init["env"] == fetch["env"]
    assert init["args"][1].startswith("/models/smollm2-135m-instruct-")


def test_an_override_of_one_group_leaves_the_others_alone():
    workers = {"a": {}, "b": {}}
    before = cluster({}, workers=workers)["workerGroupSpecs"]
    after = cluster({"workerGroups": {"b": {"scaleStrategy": {"workersToDelete": ["x"]}}}}, workers=workers)[
        "workerGroupSpecs"
    ]
    assert before[0] == after[0]
    assert after[1]["scaleStrategy"] == {"workersToDelete": ["x"]}


def test_the_cluster_s_override_comes_after_its_groups():
    overrides = {
        "headGroup": {"serviceType": "NodePort"},
        "rayCluster": {
            "headGroupSpec": {"serviceType": "LoadBalancer"},
            "upgradeStrategy": {"type": "None"},
            "suspend": True,
        },
    }
    spec = cluster(overrides)
    assert (spec["headGroupSpec"]["serviceType"], spec["upgradeStrategy"], spec["suspend"]) == (
        "LoadBalancer",
        {"type": "None"},
        True,
    )


def test_a_rayservice_takes_overrides_of_its_own_and_of_its_cluster():
    overrides = {"rayService": {"serveService": {"metadata": {"labels": {"a": "b"}}}}, "rayCluster": {"suspend": True}}
    obj = render({"kind": "RayService", "specOverrides": overrides}).find("RayService")
    assert validate(obj) == []
    assert obj["spec"]["serveService"] == {"metadata": {"labels": {"a": "b"}}}
    assert obj["spec"]["rayClusterConfig"]["suspend"] is True
    assert obj["spec"]["upgradeStrategy"] == {"type": "NewCluster"}


def test_ray_s_resources_replace_the_start_parameters_that_kuberay_refuses_beside_them():
    spec = cluster({"headGroup": {"resources": {"rack": "1"}}, "workerGroups": {"worker": {"resources": {"GPU": "4"}}}})
    assert spec["headGroupSpec"]["resources"] == {"CPU": "0", "rack": "1"}
    assert "num-cpus" not in spec["headGroupSpec"]["rayStartParams"]
    claims = [{"name": "gpus", "resourceClaimTemplateName": "eight"}]
    values = {"workerDefaults": {"gpusPerNode": 1, "numGpus": 1, "resourceClaims": claims}}
    [group] = cluster({"workerGroups": {"worker": {"resources": {"rack": "1"}}}}, **values)["workerGroupSpecs"]
    assert group["resources"] == {"GPU": "1", "rack": "1"}
    assert "num-gpus" not in group["rayStartParams"]
