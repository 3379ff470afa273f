"""autoscaling.mode hpa: engines stay within gangs that come and go, Serve follows them, load reaches the autoscaler."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ci.lab.addons import prometheus_adapter

from llm_ray.config import DeploymentConfig, parse
from llm_ray.naming import GANG_NODE_LABEL, HOST_NODE_LABEL, REPLICA_NAME_LABEL
from tests.support import kuberay
from tests.support.chart import CHART, HelmError, Objects, render, run_helm

ROOT = CHART.parents[1]
EXAMPLE = ROOT / "examples" / "autoscaling" / "prometheus-adapter.yaml"
PUSH_S, SYNC_S = 10, 15
"""Ray's metrics_report_interval_ms; the HPA controller's period by default."""
COUNTS = {"minReplicas": 1, "maxReplicas": 3}
OVER_TWO_PODS: dict[str, Any] = {"gpusPerNode": 2, **COUNTS}
IN_ONE_POD: dict[str, Any] = {"gpusPerNode": 4, **COUNTS}


def values(mode: str = "hpa", **workers: Any) -> dict[str, Any]:
    return {"engine": {"tensorParallelSize": 4}, "workers": workers, "autoscaling": {"mode": mode}}


def deployment(objects: Objects) -> dict[str, Any]:
    [application] = kuberay.serve_config(objects.find("RayService"), [])["applications"]
    args: dict[str, Any] = application["args"]["deployment"]
    return args


def environment(objects: Objects, group: str) -> dict[str, Any]:
    """The Ray container's variables in the order of the list, each its value or the field it comes from."""
    cluster = kuberay.cluster_spec(objects.find("RayService"))
    [spec] = [one for one in cluster["workerGroupSpecs"] if one["groupName"] == group]
    ray = spec["template"]["spec"]["containers"][0]
    return {
        one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in ray["env"]
        if "value" in one or "fieldRef" in one["valueFrom"]
    }


@pytest.mark.parametrize(
    ("mode", "workers", "placement", "policy"),
    [
        ("hpa", {"a": OVER_TWO_PODS}, "GANG", "capacity"),
        ("hpa", {"a": IN_ONE_POD}, "STRICT_PACK", "capacity"),
        ("hpa", {"a": OVER_TWO_PODS, "b": IN_ONE_POD}, "GANG", "capacity"),
        ("serve", {"a": OVER_TWO_PODS}, "PACK", "requests"),
        ("serve", {"a": IN_ONE_POD}, "STRICT_PACK", "requests"),
    ],
)
def test_serve_follows_the_gangs_where_an_autoscaler_of_kubernetes_leads(
    mode: str, workers: dict[str, Any], placement: str, policy: str
) -> None:
    told = deployment(render(values(mode, **workers)))
    assert (told["placement_strategy"], told["autoscaling_policy"]) == (placement, policy)
    assert parse(DeploymentConfig, told)


def test_a_policy_that_is_given_wins() -> None:
    given = values(a=IN_ONE_POD) | {"serve": {"deployment": {"autoscalingPolicy": "requests"}}}
    assert deployment(render(given))["autoscaling_policy"] == "requests"


def test_each_pod_of_a_gang_says_which_and_which_host_it_is() -> None:
    env = environment(render(values(a=OVER_TWO_PODS)), "a")
    assert env["LLM_RAY_GANG"] == f"metadata.labels['{REPLICA_NAME_LABEL}']"
    assert env["LLM_RAY_HOST"] == "metadata.labels['ray.io/replica-host-index']"
    assert json.loads(env["RAY_OVERRIDE_LABELS"]) == {
        GANG_NODE_LABEL: "$(LLM_RAY_GANG)",
        HOST_NODE_LABEL: "$(LLM_RAY_HOST)",
    }


def test_a_pod_that_is_a_gang_by_itself_is_host_0_of_it() -> None:
    env = environment(render(values(a=OVER_TWO_PODS, b=IN_ONE_POD)), "b")
    assert (env["LLM_RAY_GANG"], env["LLM_RAY_HOST"]) == ("metadata.name", "0")
    assert "RAY_OVERRIDE_LABELS" in env


def test_kubernetes_can_put_the_values_into_the_label_because_they_come_first() -> None:
    names = list(environment(render(values(a=OVER_TWO_PODS)), "a"))
    label = names.index("RAY_OVERRIDE_LABELS")
    assert {"LLM_RAY_GANG", "LLM_RAY_HOST"} <= set(names[:label])


@pytest.mark.parametrize(("mode", "workers"), [("hpa", {"a": IN_ONE_POD}), ("serve", {"a": OVER_TWO_PODS})])
def test_pods_carry_no_labels_that_nobody_asks_for(mode: str, workers: dict[str, Any]) -> None:
    assert "RAY_OVERRIDE_LABELS" not in environment(render(values(mode, **workers)), "a")


@pytest.mark.parametrize(("mode", "reports"), [("hpa", True), ("serve", False)])
def test_the_deployer_says_which_workers_are_idle_where_the_scaler_asks(mode: str, reports: bool) -> None:
    objects = render(values(mode, a=IN_ONE_POD) | {"serve": {"httpPort": 8001}})
    head = kuberay.cluster_spec(objects.find("RayService"))["headGroupSpec"]["template"]["spec"]
    [deployer] = [one for one in head["initContainers"] if one["name"] == "deployer"]
    assert ("--report-idle" in deployer["args"]) == reports
    assert ("--serve-port=8001" in deployer["args"]) == reports
    pods = [rule for rule in objects.find("Role")["rules"] if "pods" in rule["resources"]]
    assert [set(rule["verbs"]) for rule in pods] == [{"get", "list", "patch"}]


def adapter_rule(**hpa: Any) -> Any:
    """As the notes of an install print it."""
    given = values(a=IN_ONE_POD)
    given["autoscaling"]["hpa"] = hpa
    command = ["install", "demo", str(CHART), "--namespace", "serving", "--dry-run=client", "-f", "-"]
    done = run_helm("helm4", command, json.dumps(given))
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode().partition("this is the rule (values of its chart):\n")[2].partition("\nMind:")[0]
    return yaml.safe_load(text)


def test_the_adapter_rule_in_the_notes_is_the_example_and_the_one_that_the_lab_proves() -> None:
    assert adapter_rule() == yaml.safe_load(EXAMPLE.read_text())
    assert adapter_rule()["rules"]["external"] == prometheus_adapter.rules()["externalRules"]


def test_the_adapter_rule_serves_the_metric_by_its_name() -> None:
    assert adapter_rule(metricName="requests")["rules"]["external"][0]["name"] == {"as": "requests"}
    assert adapter_rule(provider="keda") is None


def test_the_adapter_sums_what_keda_asks_for() -> None:
    given = values(a=IN_ONE_POD)
    given["autoscaling"]["hpa"] = {"provider": "keda"}
    [trigger] = render(given).find("ScaledObject")["spec"]["triggers"]
    matchers = 'namespace="serving",llm_ray_name="demo-llm-ray"'
    [rule] = adapter_rule()["rules"]["external"]
    assert rule["metricsQuery"].replace("<<.LabelMatchers>>", matchers) == trigger["metadata"]["query"]


@pytest.mark.parametrize("situation", ["hpa", "hpa-gangs"])
def test_from_load_to_the_request_of_a_gang_it_takes_at_most_thirty_seconds(situation: str) -> None:
    objects = render(CHART / "ci" / f"{situation}.yaml")
    scrapes = [
        int(endpoint["interval"].removesuffix("s"))
        for monitor in objects.all("PodMonitor")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    ]
    behavior = objects.find("HorizontalPodAutoscaler")["spec"]["behavior"]["scaleUp"]
    assert PUSH_S + max(scrapes) + SYNC_S + behavior["stabilizationWindowSeconds"] <= 30


OF_A_RAY_KIND = {"kind": "HorizontalPodAutoscaler", "spec": {"scaleTargetRef": {"kind": "RayCluster"}}}
SMUGGLED: dict[str, Any] = {
    "in a list": {"apiVersion": "v1", "kind": "List", "items": [OF_A_RAY_KIND]},
    "by a template": "kind: HorizontalPodAutoscaler\nspec: {scaleTargetRef: {kind: '{{ \"RayCluster\" }}'}}",
    "after a separator": "---\nkind: HorizontalPodAutoscaler\nspec: {scaleTargetRef: {kind: RayCluster}}",
}


@pytest.mark.parametrize("way", SMUGGLED)
def test_an_autoscaler_of_a_ray_kind_cannot_be_smuggled_in(way: str) -> None:
    with pytest.raises(
        HelmError, match=r"scaleTargetRef\.kind of HorizontalPodAutoscaler \(RayCluster\) must have a scale"
    ):
        render({"extraObjects": [SMUGGLED[way]]})


def test_an_autoscaler_of_something_that_has_a_scale_may_be_an_extra_object() -> None:
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "gateway"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gateway"},
            "maxReplicas": 2,
        },
    }
    assert render({"extraObjects": [scaler]}).find("HorizontalPodAutoscaler", "gateway")
