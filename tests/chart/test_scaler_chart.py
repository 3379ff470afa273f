"""charts/llm-ray-scaler: the CRD, the controller with its rights and no more, and who else may use the kind."""

from __future__ import annotations

import argparse
import copy
from typing import Any

import pytest
import yaml
from ci.helm import SCALER_CHART

from llm_ray.scaler import command
from tests.support.chart import HELMS, Manifest, Objects, pod_templates
from tests.support.scaler_chart import NAMESPACE, every_situation, in_situation, scaler
from tests.support.validate import KUBERNETES, pod_security, validate

CRD_FILE = SCALER_CHART / "files" / "crds" / "llm-ray.io_workergroupscales.yaml"
NAME = "demo-llm-ray-scaler"
CLUSTER_WIDE = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
KEEP = "helm.sh/resource-policy"
RIGHTS = {
    ("llm-ray.io", "workergroupscales"): {"get", "list", "watch"},
    ("llm-ray.io", "workergroupscales/status"): {"patch"},
    ("ray.io", "rayservices"): {"get", "list", "watch"},
    ("ray.io", "rayclusters"): {"get", "list", "watch", "patch"},
    ("", "pods"): {"get", "list", "watch"},
    ("autoscaling", "horizontalpodautoscalers"): {"get", "list", "watch"},
    ("", "events"): {"create"},
}
EVERYWHERE = RIGHTS | {("apiextensions.k8s.io", "customresourcedefinitions"): {"list", "watch"}}


def rights(role: Manifest) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def container(objects: Objects) -> dict[str, Any]:
    [made] = objects.find("Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(made)


def test_a_default_install_is_one_pod_with_its_rights_and_the_crd():
    assert scaler().inventory() == [
        ("ClusterRole", NAME),
        ("ClusterRole", f"{NAME}-edit"),
        ("ClusterRole", f"{NAME}-view"),
        ("ClusterRoleBinding", NAME),
        ("CustomResourceDefinition", "workergroupscales.llm-ray.io"),
        ("Deployment", NAME),
        ("NetworkPolicy", NAME),
        ("Role", f"{NAME}-lease"),
        ("RoleBinding", f"{NAME}-lease"),
        ("ServiceAccount", NAME),
    ]
    assert scaler().find("Deployment")["spec"]["replicas"] == 1


@every_situation
def test_both_helms_render_the_same(situation: str):
    first, second = (in_situation(situation, helm=helm) for helm in HELMS)
    assert sorted(map(str, first)) == sorted(map(str, second))


@every_situation
@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_every_object_is_valid(situation: str, kubernetes: str):
    assert [fault for made in in_situation(situation) for fault in validate(made, kubernetes=kubernetes)] == []


@every_situation
def test_the_pods_may_run_in_a_restricted_namespace(situation: str):
    [pod] = pod_templates(in_situation(situation))
    assert pod_security([pod]) == []


@every_situation
def test_only_cluster_wide_kinds_have_no_namespace(situation: str):
    for made in in_situation(situation):
        assert ("namespace" in made["metadata"]) == (made["kind"] not in CLUSTER_WIDE), made["kind"]


@every_situation
def test_selectors_match_the_pods_and_what_is_fixed_for_a_release(situation: str):
    objects = in_situation(situation)
    deployment = objects.find("Deployment")["spec"]
    selector = deployment["selector"]["matchLabels"]
    assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    assert selector.items() <= deployment["template"]["metadata"]["labels"].items()
    others = [made["spec"]["podSelector"]["matchLabels"] for made in objects.all("NetworkPolicy")]
    others += [made["spec"]["selector"]["matchLabels"] for made in objects.all("PodDisruptionBudget")]
    assert all(other == selector for other in others)


def test_a_new_version_of_the_chart_restarts_no_pod():
    templates = [scaler(chart_version=version).find("Deployment")["spec"]["template"] for version in ("0.1.0", "9.9.9")]
    image = [template["spec"]["containers"][0].pop("image") for template in templates]
    assert templates[0] == templates[1]
    assert len(set(image)) == 1, "the image follows appVersion"


@pytest.mark.parametrize("release", ["r" * 53, "a.b", "llm-ray-scaler"])
def test_names_stay_within_their_limit_and_without_dots(release: str):
    objects = scaler(release=release)
    for kind, name in objects.inventory():
        assert kind == "CustomResourceDefinition" or (len(name) <= 63 and "." not in name)


def test_the_crd_is_the_file_and_stays_when_the_release_goes():
    crd = scaler().find("CustomResourceDefinition")
    source = yaml.safe_load(CRD_FILE.read_text())
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"]
    assert crd["metadata"]["annotations"] == {KEEP: "keep"}


def test_the_crd_may_go_with_the_release_or_be_someone_elses():
    assert "annotations" not in scaler({"crd": {"keep": False}}).find("CustomResourceDefinition")["metadata"]
    assert not scaler({"crd": {"create": False}}).all("CustomResourceDefinition")


def test_helm_upgrades_it_because_it_is_no_crd_of_the_crds_folder():
    assert not (SCALER_CHART / "crds").exists()
    assert "CustomResourceDefinition" in {made["kind"] for made in scaler(extra_args=("--skip-crds",))}


def test_the_scale_subresource_has_all_that_an_autoscaler_asks_for():
    [version] = scaler().find("CustomResourceDefinition")["spec"]["versions"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_the_controller_has_its_rights_everywhere_and_no_more():
    objects = scaler()
    assert rights(objects.find("ClusterRole", NAME)) == EVERYWHERE
    binding = objects.find("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == NAME
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    assert objects.find("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == NAME


def test_with_a_list_of_namespaces_it_has_them_there_alone():
    objects = scaler({"watchNamespaces": ["a", "b"]})
    assert {name for kind, name in objects.inventory() if kind == "ClusterRole"} == {f"{NAME}-edit", f"{NAME}-view"}
    assert not objects.all("ClusterRoleBinding")
    roles = {made["metadata"]["namespace"]: made for made in objects.all("Role") if made["metadata"]["name"] == NAME}
    assert {namespace: rights(role) for namespace, role in roles.items()} == {"a": RIGHTS, "b": RIGHTS}
    bindings = [made for made in objects.all("RoleBinding") if made["metadata"]["name"] == NAME]
    assert [made["metadata"]["namespace"] for made in bindings] == ["a", "b"]
    assert all(made["subjects"][0]["namespace"] == NAMESPACE for made in bindings)


def test_it_may_touch_one_lease_of_its_own_namespace():
    role = scaler().find("Role", f"{NAME}-lease")
    assert role["metadata"]["namespace"] == NAMESPACE
    named = [rule for rule in role["rules"] if "create" not in rule["verbs"]]
    assert [rule["resourceNames"] for rule in named] == [[NAME]]
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"leases"}


def test_admins_and_editors_of_a_namespace_may_manage_the_kind_and_viewers_see_it():
    objects = scaler()
    found = {}
    for suffix in ("edit", "view"):
        role = objects.find("ClusterRole", f"{NAME}-{suffix}")
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        labels = role["metadata"]["labels"]
        found[suffix] = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}, rights(role)
    resources = [("llm-ray.io", "workergroupscales"), ("llm-ray.io", "workergroupscales/scale")]
    writes = {"create", "delete", "deletecollection", "patch", "update"}
    assert found["edit"] == ({"admin", "edit"}, {resource: writes for resource in resources})
    assert found["view"] == ({"view"}, {resource: {"get", "list", "watch"} for resource in resources})


def test_without_rights_of_our_making_nothing_of_rbac_is_rendered():
    objects = scaler({"rbac": {"create": False, "aggregate": False}})
    assert {kind for kind, _ in objects.inventory()} == {
        "CustomResourceDefinition", "Deployment", "NetworkPolicy", "ServiceAccount"
    }  # fmt: skip


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_budget_is_there_once_there_is_a_pod_to_spare(replicas: int, budgets: int):
    objects = scaler({"scaler": {"replicas": replicas}})
    assert [made["spec"]["maxUnavailable"] for made in objects.all("PodDisruptionBudget")] == [1] * budgets


def test_several_pods_keep_apart_unless_told_otherwise():
    def affinity(**values: Any) -> Any:
        return scaler({"scaler": values}).find("Deployment")["spec"]["template"]["spec"].get("affinity")

    assert affinity() is None
    [term] = affinity(replicas=2)["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert affinity(replicas=2, affinity={}) is None


def test_the_probes_ask_the_port_that_the_controller_is_told():
    made = container(scaler({"scaler": {"healthPort": 9440}}))
    assert "--health-port=9440" in made["args"]
    assert made["ports"] == [{"name": "health", "containerPort": 9440, "protocol": "TCP"}]
    asked = {probe: made[f"{probe}Probe"]["httpGet"] for probe in ("startup", "readiness", "liveness")}
    assert asked == {
        "startup": {"path": "/healthz", "port": "health"},
        "readiness": {"path": "/readyz", "port": "health"},
        "liveness": {"path": "/healthz", "port": "health"},
    }


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "llm-ray/llm-ray:0.1.0"),
        ({"registry": "r.example.com", "tag": "1"}, "r.example.com/llm-ray/llm-ray:1"),
        ({"tag": "latest", "digest": f"sha256:{'0' * 64}"}, f"llm-ray/llm-ray@sha256:{'0' * 64}"),
    ],
)
def test_the_image_is_the_one_of_llm_ray(image: dict[str, str], reference: str):
    assert container(scaler({"image": image}))["image"] == reference


def test_nobody_connects_to_it_and_it_connects_to_dns_and_the_api_server_alone():
    spec = scaler().find("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in spec
    ports = [{(port["protocol"], port["port"]) for port in rule["ports"]} for rule in spec["egress"]]
    assert ports == [{("UDP", 53), ("TCP", 53)}, {("TCP", 443), ("TCP", 6443)}]


def test_common_labels_and_annotations_reach_every_object_and_no_pod():
    values = {"commonLabels": {"team": "x"}, "commonAnnotations": {"note": "y"}, "watchNamespaces": ["a"]}
    objects = scaler(values)
    assert all(made["metadata"]["labels"]["team"] == "x" for made in objects)
    assert all(made["metadata"]["annotations"]["note"] == "y" for made in objects)
    [pod] = pod_templates(objects)
    assert "team" not in pod.metadata["labels"]


def test_the_judge_of_rights_sees_one_too_many():
    role = copy.deepcopy(scaler().find("ClusterRole", NAME))
    role["rules"][0]["verbs"].append("delete")
    assert rights(role) != EVERYWHERE


def test_the_controller_takes_the_arguments(monkeypatch: pytest.MonkeyPatch):
    made = container(scaler({"watchNamespaces": ["a", "b"], "scaler": {"healthPort": 9440, "logLevel": "debug"}}))
    assert made["command"] == ["tini", "--", "llm-ray", "scaler"]
    parser = argparse.ArgumentParser()
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    command.add_arguments(parser)
    chosen = parser.parse_args(made["args"])
    assert (chosen.namespace, chosen.health_port, chosen.log_level) == (["a", "b"], 9440, "debug")
    assert (chosen.lease_namespace, chosen.lease_name) == (NAMESPACE, NAME)
    variables = {variable["name"] for variable in made["env"]}
    assert variables == {"POD_NAMESPACE"}
