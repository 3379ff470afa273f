"""Selectors match exactly the pods that are meant, of this release alone; references lead to objects that exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support import kuberay
from tests.support.chart import Manifest, Objects
from tests.support.random_values import ray_owner
from tests.support.situations import every_situation, rendered

SERVING = {"llm-ray.io/serving": "true"}
SELECTOR_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/component", "llm-ray.io/name", *SERVING}
GROUP = "llm-ray.io/group"


@dataclass(frozen=True)
class Labelled:
    """A pod as a selector sees it."""

    release: str
    role: str
    serving: bool
    labels: dict[str, str] = field(repr=False, hash=False)


def pods(objects: Objects, release: str) -> list[Labelled]:
    """Every kind of pod of a release, each with and without the deployer's label, and the pod of `helm test`."""
    found = []
    for pod in kuberay.kinds_of_pods(ray_owner(objects)):
        found.append(Labelled(release, pod.group, False, pod.labels))
        found.append(Labelled(release, pod.group, True, pod.labels | SERVING))
    tests = [obj for obj in objects.all("Pod") if "helm.sh/hook" in obj["metadata"]["annotations"]]
    return found + [Labelled(release, "test", False, obj["metadata"]["labels"]) for obj in tests]


def universe(situation: str) -> tuple[Objects, list[Labelled]]:
    """The objects of release `demo`, and the pods of it and of others in its namespace whose names are much alike."""
    releases = {name: rendered(situation, name) for name in ("demo", "demo-2", "a")}
    return releases["demo"], [pod for name, objects in releases.items() for pod in pods(objects, name)]


def selectors(obj: Manifest) -> Iterator[dict[str, Any]]:
    """What an object selects pods of its own release by."""
    spec = obj.get("spec", {})
    if obj["kind"] == "Service":
        yield {"matchLabels": spec["selector"]}
    elif obj["kind"] in ("PodDisruptionBudget", "PodMonitor", "PeerAuthentication", "AuthorizationPolicy"):
        yield spec["selector"]
    elif obj["kind"] == "NetworkPolicy":
        yield spec["podSelector"]


def meant(obj: Manifest, everyone: list[Labelled]) -> set[Labelled]:
    """The pods that an object is for, by its kind and component."""
    ours = {pod for pod in everyone if pod.release == "demo"}
    roles = {
        "head": {pod for pod in ours if pod.role == "headgroup"},
        "worker": {pod for pod in ours if pod.role not in ("headgroup", "test")},
        "test": {pod for pod in ours if pod.role == "test"},
    }
    if obj["kind"] == "Service":
        return {pod for pod in ours if pod.serving}
    if obj["kind"] in ("PeerAuthentication", "AuthorizationPolicy"):
        return ours
    return roles[obj["metadata"]["labels"]["app.kubernetes.io/component"]]


@every_situation
def test_a_selector_matches_exactly_the_pods_that_are_meant(situation):
    objects, everyone = universe(situation)
    seen = 0
    for obj in objects:
        for selector in selectors(obj):
            matched = {pod for pod in everyone if kuberay.matches(selector, pod.labels)}
            per_group = obj["kind"] == "PodDisruptionBudget" and GROUP in selector["matchLabels"]
            assert set(selector["matchLabels"]) <= SELECTOR_LABELS | ({GROUP} if per_group else set()), obj["metadata"]
            if per_group:
                assert len({pod.role for pod in matched}) == 1, obj["metadata"]["name"]
                assert matched <= meant(obj, everyone), obj["metadata"]["name"]
            else:
                assert matched == meant(obj, everyone), f"{obj['kind']}/{obj['metadata']['name']}"
            seen += 1
    assert seen >= 2


@every_situation
def test_a_group_that_may_lose_one_replica_has_one_budget_of_its_own(situation):
    objects, everyone = universe(situation)
    ours = [pod for pod in everyone if pod.release == "demo"]
    budgets = [obj["spec"] for obj in objects.all("PodDisruptionBudget")]
    groups = kuberay.cluster_spec(ray_owner(objects))["workerGroupSpecs"]
    budgeted = [g for g in groups if not g.get("suspend") and g["minReplicas"] >= 2]
    found = []
    for budget in [budget for budget in budgets if GROUP in budget["selector"]["matchLabels"]]:
        [role] = {pod.role for pod in ours if kuberay.matches(budget["selector"], pod.labels)}
        found.append((role, budget["minAvailable"]))
    assert sorted(found) == [(g["groupName"], (g["minReplicas"] - 1) * g["numOfHosts"]) for g in budgeted]


@every_situation
def test_peers_of_a_network_policy_are_pods_of_this_release_or_in_other_hands(situation):
    objects, everyone = universe(situation)
    for obj in objects.all("NetworkPolicy"):
        rules = [*obj["spec"].get("ingress", []), *obj["spec"].get("egress", [])]
        peers = [peer for rule in rules for peer in [*rule.get("from", []), *rule.get("to", [])]]
        for selector in [peer["podSelector"] for peer in peers if set(peer) == {"podSelector"}]:
            matched = {pod for pod in everyone if kuberay.matches(selector, pod.labels)}
            assert matched, f"{obj['metadata']['name']}: {selector} matches nothing"
            assert {pod.release for pod in matched} == {"demo"}
            assert set(selector["matchLabels"]) <= SELECTOR_LABELS


@every_situation
def test_a_service_monitor_selects_the_head_service_of_this_release_alone(situation):
    objects, _ = universe(situation)
    owner = ray_owner(objects)
    other = ray_owner(rendered(situation, "demo-2"))
    name, other_name = owner["metadata"]["name"], other["metadata"]["name"]
    generated = "-x7k2p" if owner["kind"] == "RayService" else ""
    for monitor in objects.all("ServiceMonitor"):
        selector = monitor["spec"]["selector"]
        assert kuberay.matches(selector, kuberay.head_service_labels(owner, name + generated))
        assert not kuberay.matches(selector, kuberay.head_service_labels(other, other_name + generated))


@every_situation
def test_a_volcano_subgroup_holds_one_worker_group(situation):
    objects, everyone = universe(situation)
    ours = [pod for pod in everyone if pod.release == "demo"]
    for gang in objects.all("PodGroup"):
        for policy in gang["spec"].get("subGroupPolicy", []):
            assert {pod.role for pod in ours if kuberay.matches(policy["labelSelector"], pod.labels)} == {
                policy["name"]
            }


# ---- references


@every_situation
def test_every_reference_leads_to_an_object_of_the_release(situation):
    objects = rendered(situation)
    names = set(objects.inventory())
    base = ray_owner(objects)["metadata"]["name"]
    found = list(references(objects))
    assert found
    for where, kind, name in found:
        # what does not carry the release's name was named by the values and is somebody else's
        assert (kind, name) in names or not name.startswith(base), f"{where} names {kind}/{name}"


def references(objects: Objects) -> Iterator[tuple[str, str, str]]:
    for obj in objects:
        where, spec = f"{obj['kind']}/{obj['metadata']['name']}", obj.get("spec", {})
        if obj["kind"] == "RoleBinding":
            yield where, "Role", obj["roleRef"]["name"]
            yield from ((where, subject["kind"], subject["name"]) for subject in obj["subjects"])
        if "scaleTargetRef" in spec:
            yield where, spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]
        if obj["kind"] == "WorkerGroupScale":
            yield where, spec["target"]["kind"], spec["target"]["name"]
        if obj["kind"] in ("HTTPRoute", "GRPCRoute"):
            yield from ((where, "Service", ref["name"]) for rule in spec["rules"] for ref in rule["backendRefs"])
        if obj["kind"] == "Ingress":
            paths = [path for rule in spec["rules"] for path in rule["http"]["paths"]]
            yield from ((where, "Service", path["backend"]["service"]["name"]) for path in paths)
        if obj["kind"] == "DestinationRule":
            yield where, "Service", spec["host"]
    for pod in kuberay.kinds_of_pods(ray_owner(objects)):
        yield from pod_references(pod)


def pod_references(pod: kuberay.Pod) -> Iterator[tuple[str, str, str]]:
    yield pod.group, "ServiceAccount", pod.spec["serviceAccountName"]
    for volume in pod.spec["volumes"]:
        if "configMap" in volume:
            yield pod.group, "ConfigMap", volume["configMap"]["name"]
        if "persistentVolumeClaim" in volume:
            yield pod.group, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    if gang := pod.annotations.get("scheduling.k8s.io/group-name"):
        yield pod.group, "PodGroup", gang


@every_situation
def test_routes_and_the_test_pod_use_ports_that_the_service_has(situation):
    objects = rendered(situation)
    ports = {port["name"]: port["port"] for port in objects.find("Service")["spec"]["ports"]}
    for kind, name in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        for route in objects.all(kind):
            assert {ref["port"] for rule in route["spec"]["rules"] for ref in rule["backendRefs"]} == {ports[name]}
    for ingress in objects.all("Ingress"):
        paths = [path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]
        assert {path["backend"]["service"]["port"]["name"] for path in paths} <= ports.keys()
    for pod in objects.all("Pod"):
        [url] = [e["value"] for e in pod["spec"]["containers"][0]["env"] if e["name"] == "URL"]
        assert url == f"http://{objects.find('Service')['metadata']['name']}:{ports['http']}"
