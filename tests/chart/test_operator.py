"""What the KubeRay operator's own code says: it takes every object, and its pods are what the chart counts on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ci.manifests import Manifest, Pod

from tests.support.chart import CI_VALUES, Objects, render
from tests.support.operator import judge
from tests.support.validate import pod_security


def owner(objects: Objects) -> dict[str, Any]:
    [found] = objects.all("RayCluster") + objects.all("RayService")
    return found


RENDERED = {"defaults": render(), **{file.stem: render(file) for file in CI_VALUES}}
VERDICTS = dict(zip(RENDERED, judge([owner(objects) for objects in RENDERED.values()]), strict=True))
everywhere = pytest.mark.parametrize("name", RENDERED)


@everywhere
def test_the_operator_takes_the_object_and_makes_pods(name):
    assert VERDICTS[name].error == ""
    assert VERDICTS[name].pods[0]["metadata"]["labels"]["ray.io/node-type"] == "head"


@everywhere
def test_a_static_gang_has_as_many_members_as_the_operator_makes_pods(name):
    for group in standing_groups(name):
        assert group["spec"]["minMember"] == len(VERDICTS[name].pods)
        for pod in VERDICTS[name].pods:
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
            assert pod["spec"]["schedulerName"] == "volcano"


def standing_groups(name: str) -> list[Manifest]:
    """PodGroups but for the one that is gone before the cluster is there."""
    groups = RENDERED[name].all("PodGroup")
    return [group for group in groups if "helm.sh/hook" not in group["metadata"].get("annotations", {})]


@everywhere
def test_shared_memory_is_mounted_once_and_is_ours(name):
    for pod in VERDICTS[name].pods:
        mounts = [m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        assert mounts == ["dshm"]


@everywhere
def test_volumes_mounts_and_ports_of_a_finished_pod_are_distinct(name):
    for pod in VERDICTS[name].pods:
        volumes = [v["name"] for v in pod["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            paths = [m["mountPath"] for m in container.get("volumeMounts", [])]
            assert len(paths) == len(set(paths))
            assert {m["name"] for m in container.get("volumeMounts", [])} <= set(volumes)
            ports = [p["containerPort"] for p in container.get("ports", [])]
            assert len(ports) == len(set(ports))


@everywhere
def test_every_selector_of_the_chart_finds_pods_that_the_operator_makes(name):
    pods = [pod["metadata"]["labels"] for pod in VERDICTS[name].pods]
    for obj in RENDERED[name]:
        selector = selector_of(obj)
        if selector and selector.get("app.kubernetes.io/component") != "test":
            wanted = {k: v for k, v in selector.items() if k != "llm-ray.io/serving"}  # the deployer sets that one
            assert any(wanted.items() <= labels.items() for labels in pods), (
                obj["kind"],
                obj["metadata"]["name"],
                selector,
            )


def selector_of(obj: dict[str, Any]) -> dict[str, str]:
    spec = obj.get("spec", {})
    match obj["kind"]:
        case "Service":
            return dict(spec.get("selector", {}))
        case "NetworkPolicy":
            return dict(spec["podSelector"].get("matchLabels", {}))
        case "PodDisruptionBudget" | "PodMonitor" | "PeerAuthentication" | "AuthorizationPolicy":
            return dict(spec["selector"].get("matchLabels", {}))
    return {}


def test_with_default_values_pods_pass_restricted_with_all_that_the_operator_adds():
    for mode in ("fixed", "serve", "hpa"):
        [verdict] = judge([owner(render({"autoscaling": {"mode": mode}}))])
        assert verdict.error == ""
        pods = [Pod(p["metadata"]["generateName"], p["metadata"], p["spec"]) for p in verdict.pods]
        assert pod_security(pods, "restricted") == []


def test_the_head_gets_no_work_and_the_workers_all_their_cpus():
    commands = [start_command(pod) for pod in VERDICTS["laptop-cpu"].pods]
    assert "--num-cpus=0" in commands[0]
    for pod, command in zip(VERDICTS["laptop-cpu"].pods[1:], commands[1:], strict=True):
        limit = pod["spec"]["containers"][0]["resources"]["limits"]["cpu"]
        assert f"--num-cpus={limit}" in command


def start_command(pod: dict[str, Any]) -> str:
    text = " ".join(
        map(str, pod["spec"]["containers"][0].get("command", []) + pod["spec"]["containers"][0].get("args", []))
    )
    assert re.search(r"\bray start\b", text)
    return text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"workerGroups": {"worker": {"minReplicas": 3, "maxReplicas": 2}}}, "greater than maxReplicas"),
        ({"headGroup": {"rayStartParams": {"labels": "a=b"}}}, "labels"),
    ],
)
def test_the_judge_notices_what_the_operator_refuses(overrides, message):
    cluster = owner(render())
    spec = cluster["spec"]
    spec["headGroupSpec"]["rayStartParams"] |= overrides.get("headGroup", {}).get("rayStartParams", {})
    for group in spec["workerGroupSpecs"]:
        group.update(overrides.get("workerGroups", {}).get(group["groupName"], {}))
    [verdict] = judge([cluster])
    assert message in verdict.error
