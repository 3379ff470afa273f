"""What an upgrade changes: a pod template that differs restarts pods or starts a second cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.chart import Manifest, Objects, render
from tests.support.kuberay import cluster_spec
from tests.support.random_values import ray_owner
from tests.support.situations import every_situation, rendered

TWO_GROUPS = {"workers": {"large": {"replicas": 2}, "small": {}}}


def merged(below: Any, above: Any) -> Any:
    """As Helm lays one values file over another."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def cluster(objects: Objects) -> dict[str, Any]:
    return cluster_spec(ray_owner(objects))


def changed(before: Objects, after: Objects) -> set[tuple[str, str]]:
    """Objects that are not the same in both, whichever has them."""
    was, now = ({(o["kind"], o["metadata"]["name"]): o for o in objects} for objects in (before, after))
    return {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}


@every_situation
def test_a_chart_bump_changes_no_cluster(situation):
    before, after = rendered(situation), rendered(situation, chart_version="99.9.9")
    assert ray_owner(before)["spec"] == ray_owner(after)["spec"]
    assert ray_owner(before)["metadata"]["labels"] != ray_owner(after)["metadata"]["labels"], "the bump was seen"
    assert without_chart_label(before) == without_chart_label(after)


def without_chart_label(objects: Objects) -> list[Manifest]:
    plain = copy.deepcopy([*objects])
    for obj in plain:
        obj["metadata"]["labels"].pop("helm.sh/chart", None)
    return plain


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"limits": {"memory": "8Gi"}}},
        {"nodeSelector": {"disk": "fast"}},
        {"env": {"OMP_NUM_THREADS": "4"}},
        {"podLabels": {"team": "nlp"}},
        {"shmSize": "3Gi"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changing_a_worker_group_changes_only_that_group(kind, change):
    values = TWO_GROUPS | {"kind": kind}
    before = cluster(render(values))
    after = cluster(render(merged(values, {"workers": {"small": change}})))
    assert before["headGroupSpec"] == after["headGroupSpec"]
    assert group(before, "large") == group(after, "large")
    assert group(before, "small") != group(after, "small")
    assert {**before, "workerGroupSpecs": None} == {**after, "workerGroupSpecs": None}


def group(spec: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [group for group in spec["workerGroupSpecs"] if group["groupName"] == name]
    return dict(found)


ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]}
AROUND_THE_PODS = {
    "podMonitor": {"monitoring": {"podMonitor": {"enabled": True, "interval": "20s"}}},
    "serviceMonitor": {"monitoring": {"serviceMonitor": {"enabled": True}}},
    "rules": {"monitoring": {"rules": {"enabled": True}}},
    "dashboards": {"monitoring": {"dashboards": {"enabled": True}}},
    "ingress": {"expose": {"ingress": {"enabled": True, "hosts": ["llm.example.com"]}}},
    "routes": {"expose": {"httpRoute": ROUTE, "grpcRoute": ROUTE | {"hostnames": ["grpc.example.com"]}}},
    "service": {"expose": {"service": {"type": "LoadBalancer", "httpPort": 80}}},
    "networkPolicy": {"networkPolicy": {"enabled": False}},
    "clients": {"networkPolicy": {"clients": [{"podSelector": {}}]}},
    "pdb": {"head": {"pdb": {"enabled": True}}, "workerDefaults": {"replicas": 2, "pdb": {"enabled": False}}},
    "tests": {"tests": {"enabled": False}},
    "commonLabels": {"commonLabels": {"team": "nlp"}, "commonAnnotations": {"contact": "nlp@example.com"}},
    "syncWaves": {"argocd": {"syncWaves": True}},
    "extraObjects": {
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}, "data": {"a": "b"}}]
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
@pytest.mark.parametrize("change", AROUND_THE_PODS.values(), ids=AROUND_THE_PODS)
def test_what_is_around_the_pods_changes_no_pod_template(kind, change):
    values = {"kind": kind, "workerDefaults": {"replicas": 2}}
    before, after = render(values), render(merged(values, change))
    assert changed(before, after), "the change must be seen somewhere"
    assert cluster(before) == cluster(after)


SERVE_SETTINGS = {
    "engine": {"engine": {"maxNumSeqs": 32}},
    "server": {"serve": {"server": {"maxQueueLen": 17}}},
    "deployment": {"serve": {"deployment": {"healthCheckPeriodS": 11}}},
}


@pytest.mark.parametrize("change", SERVE_SETTINGS.values(), ids=SERVE_SETTINGS)
def test_a_serve_setting_changes_only_the_configmap_of_a_raycluster(change):
    assert changed(render(), render(change)) == {("ConfigMap", "demo-llm-ray-serve")}


@pytest.mark.parametrize("change", SERVE_SETTINGS.values(), ids=SERVE_SETTINGS)
def test_a_serve_setting_changes_only_the_serve_config_of_a_rayservice(change):
    values = {"kind": "RayService"}
    before, after = render(values), render(merged(values, change))
    assert ("RayService", "demo-llm-ray") in changed(before, after)
    assert cluster(before) == cluster(after)
    assert ray_owner(before)["spec"]["serveConfigV2"] != ray_owner(after)["spec"]["serveConfigV2"]


def test_the_replica_count_of_a_raycluster_changes_nothing_in_its_pods():
    before, after = cluster(render()), cluster(render({"workerDefaults": {"replicas": 3}}))
    assert before["headGroupSpec"] == after["headGroupSpec"]
    assert group(before, "worker")["template"] == group(after, "worker")["template"]
    assert group(after, "worker")["replicas"] == 3
