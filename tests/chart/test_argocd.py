"""The Argo CD examples: valid objects, values that the chart takes, health checks that judge real statuses right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lupa.lua51
import pytest
import yaml

from tests.support.chart import render
from tests.support.validate import validate

RUN = """function(text, obj)
  local f = assert(loadstring(text))
  setfenv(f, {obj=obj, ipairs=ipairs, pairs=pairs})
  return f()
end"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "argocd"


def load(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text())


@pytest.mark.parametrize("name", ["application.yaml", "applicationset.yaml"])
def test_the_example_is_a_valid_object(name):
    assert validate(load(name)) == []


def test_the_chart_takes_the_values_of_the_example_application():
    spec = load("application.yaml")["spec"]
    objects = render(
        spec["source"]["helm"]["valuesObject"],
        release=spec["source"]["helm"]["releaseName"],
        namespace=spec["destination"]["namespace"],
    )
    assert {o["metadata"]["namespace"] for o in objects} == {"llm"}
    assert objects.all("RayService"), "with an autoscaler, nobody but Helm writes into the chart's objects"


def test_what_the_examples_ignore_is_what_the_chart_leaves_to_the_autoscaler():
    for spec in (load("application.yaml")["spec"], load("applicationset.yaml")["spec"]["template"]["spec"]):
        assert spec["ignoreDifferences"] == [
            {"group": "llm-ray.io", "kind": "WorkerGroupScale", "jsonPointers": ["/spec/replicas"]}
        ]
    scale = render({"autoscaling": {"mode": "hpa"}}).find("WorkerGroupScale")
    assert "replicas" not in scale["spec"], "the HPA writes it"


def test_sync_waves_put_the_cluster_after_its_parts_and_before_its_monitors():
    values = {
        "argocd": {"syncWaves": True},
        "gang": {"provider": "podgroup"},
        "monitoring": {"podMonitor": {"enabled": True}},
    }

    def wave(kind: str) -> int:
        found = [
            int(o["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", "0"))
            for o in objects.all(kind)
        ]
        assert len(set(found)) == 1, f"{kind}: {found}"
        return found[0]

    objects = render(values)
    assert wave("PodGroup") == wave("ConfigMap") == wave("ServiceAccount") == -1
    assert wave("RayCluster") == 0
    assert wave("PodMonitor") == 1


def health(kind: str, obj: dict[str, Any]) -> str:
    lua = lupa.lua51.LuaRuntime(unpack_returned_tuples=True)
    run = lua.eval(RUN)
    result = run((EXAMPLES / "health" / f"{kind}.lua").read_text(), to_lua(lua, obj))
    assert result["message"], "every status says why"
    return str(result["status"])


def to_lua(lua: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({k: to_lua(lua, v) for k, v in value.items()})
    if isinstance(value, list):
        return lua.table_from([to_lua(lua, v) for v in value])
    return value


def condition(type_: str, status: str, reason: str = "Because") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "message": f"{type_} is {status}"}


HEAD_READY = condition("HeadPodReady", "True")
READY = condition("Ready", "True")
UPGRADING = condition("UpgradeInProgress", "True")
NOT_UPGRADING = condition("UpgradeInProgress", "False")
CLUSTER = {"metadata": {"generation": 2}, "spec": {}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "Progressing"),
        ({"observedGeneration": 2, "desiredWorkerReplicas": 2}, "Progressing"),
        ({"observedGeneration": 1, "state": "ready"}, "Progressing"),
        ({"observedGeneration": 2, "state": "ready", "readyWorkerReplicas": 2, "conditions": [HEAD_READY]}, "Healthy"),
        ({"observedGeneration": 2, "conditions": [condition("ReplicaFailure", "True", "NoPod")]}, "Degraded"),
        ({"observedGeneration": 2, "state": "ready", "conditions": [condition("ReplicaFailure", "True")]}, "Degraded"),
        ({"observedGeneration": 2, "state": "failed", "reason": "exceeded quota"}, "Degraded"),
    ],
)  # fmt: skip
def test_health_of_a_ray_cluster(status, expected):
    assert health("RayCluster", {**CLUSTER, **({} if status is None else {"status": status})}) == expected


def test_a_suspended_cluster_and_service_are_suspended():
    for kind in ("RayCluster", "RayService"):
        assert health(kind, {"metadata": {}, "spec": {"suspend": True}, "status": {}}) == "Suspended"


def app(status: str) -> dict[str, Any]:
    return {"rayClusterName": "a", "applicationStatuses": {"llm": {"status": status, "message": "m"}}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "Progressing"),
        ({"conditions": [condition("Ready", "False", "Initializing")]}, "Progressing"),
        ({"conditions": [condition("Ready", "True")], "activeServiceStatus": app("RUNNING")}, "Healthy"),
        ({"observedGeneration": 1, "conditions": [condition("Ready", "True")]}, "Progressing"),
        ({"conditions": [READY, UPGRADING], "activeServiceStatus": app("RUNNING")}, "Progressing"),
        ({"conditions": [READY, NOT_UPGRADING], "activeServiceStatus": app("RUNNING")}, "Healthy"),
        ({"conditions": [condition("Ready", "True")], "activeServiceStatus": app("DEPLOY_FAILED")}, "Degraded"),
        ({"conditions": [condition("Ready", "True")], "activeServiceStatus": app("UNHEALTHY")}, "Degraded"),
        ({"conditions": [condition("Ready", "False", "ValidationFailed")]}, "Degraded"),
        ({"conditions": [condition("Ready", "False", "ZeroServeEndpoints")]}, "Progressing"),
    ],
)  # fmt: skip
def test_health_of_a_ray_service(status, expected):
    obj = {"metadata": {"generation": 2}, "spec": {}}
    if status is not None:
        obj["status"] = {"observedGeneration": 2, **status}
    assert health("RayService", obj) == expected
