"""The validator refuses what an API server would refuse or drop, and the vendored schemas are what their CRDs say."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ci import schemas
from ci.crd_schema import SHARED_FROM, share, strict
from ci.manifests import Pod, load_all

from tests.support.validate import KUBERAY, KUBERNETES, SCHEMAS, pod_security, validate

CUSTOM = {
    document["kind"]: document for document in load_all((Path(__file__).parent / "custom_objects.yaml").read_text())
}
OPEN = {("ApplicationSet", "spec.generators.0.list.elements.0")}
"""Places that take any field (x-kubernetes-preserve-unknown-fields)."""

RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def mappings(node: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, dict):
        yield at
        for key, child in node.items():
            yield from mappings(child, (*at, key))
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from mappings(child, (*at, index))


def changed(kind: str, path: str, value: object) -> dict[str, Any]:
    made = copy.deepcopy(CUSTOM[kind])
    *steps, last = path.split(".")
    place: Any = made
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    return made


def deployment(**container: object) -> dict[str, Any]:
    labels = {"app": "x"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1", **container}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}


def test_there_is_an_example_of_every_vendored_schema():
    vendored = {path.name.partition("_")[0] for path in SCHEMAS.rglob("*.json")}
    assert vendored == {kind.lower() for kind in CUSTOM}


@pytest.mark.parametrize("kuberay", KUBERAY)
@pytest.mark.parametrize("kind", CUSTOM)
def test_the_examples_are_valid(kind: str, kuberay: str):
    assert validate(CUSTOM[kind], kuberay=kuberay) == []


@pytest.mark.parametrize("kuberay", KUBERAY)
@pytest.mark.parametrize("kind", CUSTOM)
def test_a_misspelt_field_is_refused_wherever_it_stands(kind: str, kuberay: str):
    taken = set()
    for path in mappings(CUSTOM[kind]):
        at = ".".join(map(str, path))
        spoilt = changed(kind, f"{at}.replicsa" if at else "replicsa", {"any": ["thing"]})
        if not any("replicsa" in problem for problem in validate(spoilt, kuberay=kuberay)):
            taken.add((kind, at))
    assert taken == {place for place in OPEN if place[0] == kind}


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        ("RayCluster", "spec.headGroupSpec.rayStartParams.num-cpus", 0, "0 is not of type 'string'"),
        ("RayCluster", "spec.workerGroupSpecs.0.replicas", "1", "'1' is not of type 'integer'"),
        ("RayCluster", "spec.autoscalerOptions.version", "v3", "'v3' is not one of"),
        (
            "RayCluster",
            "spec.workerGroupSpecs.0.template.spec.containers.0.env.0.value",
            1,
            "1 is not of type 'string'",
        ),
        ("RayService", "spec.serveConfigV2", {}, "{} is not of type 'string'"),
        ("PodGroup", "spec.minMember", 1.5, "1.5 is not of type 'integer'"),
        ("NetworkAttachmentDefinition", "spec.config", {"type": "sriov"}, "is not of type 'string'"),
        ("HTTPRoute", "spec.rules.0.backendRefs.0.port", 70000, "70000 is greater than the maximum of 65535"),
        ("HTTPRoute", "spec.rules.0.timeouts.request", "5 min", "'5 min' does not match"),
        ("Gateway", "spec.listeners.0.allowedRoutes.namespaces.from", "Some", "'Some' is not one of"),
        ("ScaledObject", "spec.triggers.0.metadata.threshold", 1, "1 is not of type 'string'"),
        ("PodMonitor", "spec.podMetricsEndpoints.0.relabelings.0.action", "drop it", "'drop it' is not one of"),
        ("PrometheusRule", "spec.groups.0.rules.0.for", "5 min", "'5 min' does not match"),
        ("PeerAuthentication", "spec.mtls.mode", "strict", "'strict' is not one of"),
        ("WorkerGroupScale", "spec.replicas", -1, "-1 is less than the minimum of 0"),
        ("WorkerGroupScale", "spec.target.kind", "Deployment", "'Deployment' is not one of"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(kind: str, path: str, value: object, problem: str):
    found = validate(changed(kind, path, value))
    assert [line for line in found if problem in line and line.startswith(f"{kind}/demo: spec")] == found != []


def test_a_number_or_text_is_taken_where_kubernetes_takes_both():
    port = "spec.headGroupSpec.template.spec.containers.0.readinessProbe.httpGet.port"
    assert [validate(changed("RayCluster", port, value)) for value in (8000, "http")] == [[], []]
    assert validate(changed("RayCluster", port, 8000.5)) != []


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_core_kinds_are_strict_in_every_minor(kubernetes: str):
    assert validate(deployment(ports=[{"containerPort": 80}]), kubernetes=kubernetes) == []
    assert "imagePullPolice" in validate(deployment(imagePullPolice="Always"), kubernetes=kubernetes)[0]
    assert "is not of type 'string'" in validate(deployment(env=[{"name": "A", "value": 1}]), kubernetes=kubernetes)[0]


def test_an_entry_that_stands_twice_in_a_keyed_list_is_refused():
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert "two entries have name = A" in validate(deployment(env=twice))[0]
    env = "spec.headGroupSpec.template.spec.containers.0.env"
    assert "two entries have name = A" in validate(changed("RayCluster", env, twice))[0]
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]
    assert "two entries have containerPort, protocol = 80, TCP" in validate(deployment(ports=ports))[0]
    assert validate(deployment(ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}])) == []


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        *[("ray.io/v1", "RayClutser"), ("ray.io/v1alpha1", "RayCluster"), ("apps.example.com/v1", "Deployment")],
        *[("extensions/v1beta1", "Ingress"), ("v1", "Deployment"), ("ray.io/v2", "RayService")],
    ],
)
def test_a_kind_or_version_that_nobody_serves_is_refused(api_version: str, kind: str):
    found = validate({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}})
    assert len(found) == 1
    assert f"no schema of {api_version} {kind}" in found[0]


@pytest.mark.parametrize("spoilt", [{"kind": "Pod"}, {"apiVersion": "v1", "kind": "Pod"}, {"metadata": None}, {}])
def test_an_object_without_version_kind_or_name_is_refused(spoilt: dict[str, Any]):
    assert "must all be set to text" in validate(spoilt)[0]


def test_a_version_without_schemas_is_no_finding_but_an_error():
    with pytest.raises(ValueError, match=r"no schemas of KubeRay 1\.4"):
        validate(CUSTOM["RayCluster"], kuberay="1.4")
    with pytest.raises(ValueError, match=r"no schemas of Kubernetes 1\.20"):
        validate(deployment(), kubernetes="1.20")


def pod(**container: object) -> Pod:
    spec = {"securityContext": RESTRICTED, "containers": [{"name": "c", "image": "i:1", **container}]}
    return Pod("Pod/x", {"name": "x"}, spec)


def test_pod_security_names_what_it_forbids_and_where():
    rdma = pod(securityContext=CONFINED | {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}})
    assert pod_security([pod(securityContext=CONFINED)]) == []
    assert pod_security([rdma], "privileged") == []
    forbidden = 'container "c" must not include "IPC_LOCK" in securityContext.capabilities.add'
    assert pod_security([rdma], "baseline") == [f"Pod/x: non-default capabilities ({forbidden})"]
    assert [line.split(": ")[1].split(" (")[0] for line in pod_security([pod()])] == [
        "allowPrivilegeEscalation != false",
        "unrestricted capabilities",
    ]


def test_pod_security_refuses_a_field_it_does_not_know_and_an_empty_list():
    with pytest.raises(ValueError, match="securityContxt"):
        pod_security([pod(securityContxt={})])
    with pytest.raises(ValueError, match="holds no pod"):
        pod_security([])
    with pytest.raises(ValueError, match="-level lax"):
        pod_security([pod()], "lax")


def test_the_vendored_schemas_are_those_that_the_crds_make():
    """Of the modules on this machine; of the others at least that every kind has its file."""
    assert schemas.compare().stale == []


def test_a_schema_without_a_source_or_with_other_content_is_found(tmp_path: Path):
    ours = "llm-ray.io/workergroupscale_v1alpha1.json"
    (tmp_path / "llm-ray.io").mkdir()
    (tmp_path / "sources.yaml").write_text(
        "- files: [charts/llm-ray-scaler/files/crds/llm-ray.io_workergroupscales.yaml]\n"
        "  kinds: {WorkerGroupScale: v1alpha1}"
    )
    assert schemas.compare(tmp_path).stale == [ours]
    (tmp_path / ours).write_bytes((SCHEMAS / ours).read_bytes())
    assert schemas.compare(tmp_path).stale == []
    (tmp_path / "llm-ray.io" / "thing_v1.json").write_text("{}")
    assert schemas.compare(tmp_path).stale == ["llm-ray.io/thing_v1.json"]


def test_a_module_whose_content_differs_from_its_sum_is_refused(tmp_path: Path):
    text = (SCHEMAS / "sources.yaml").read_text()
    assert text.count("  sum: h1:") == text.count("module: ")
    source = next(source for source in schemas.sources() if source.module)
    with pytest.raises(schemas.SchemaError):
        schemas.module_dir(schemas.Source(**{**vars(source), "sum": "h1:other"}), fetch=False)


def test_sharing_parts_of_a_schema_changes_nothing_but_its_size():
    big = {"type": "object", "properties": {f"field{i}": {"type": "string", "maxLength": i} for i in range(9)}}
    inner = {"type": "array", "items": big}
    crd = {"type": "object", "properties": {"a": inner, "b": inner, "c": {"type": "object", "properties": {"d": big}}}}
    plain = strict(crd)
    shared = share(plain)
    assert len(json.dumps(big)) > SHARED_FROM
    assert set(shared["definitions"]) == {"a", "a2"}
    assert expanded(shared, shared["definitions"]) == plain
    assert len(json.dumps(shared)) < len(json.dumps(plain))


def expanded(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return expanded(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: expanded(child, definitions) for key, child in node.items() if key != "definitions"}
    return [expanded(child, definitions) for child in node] if isinstance(node, list) else node


def test_the_crd_dialect_is_read_as_the_api_server_reads_it():
    assert strict({"type": "object"}) == {"type": "object", "additionalProperties": False}
    assert strict({"type": "object", "x-kubernetes-preserve-unknown-fields": True}) == {"type": "object"}
    both = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert strict(both) == {"type": ["integer", "string"]}
    assert strict({"type": "string", "nullable": True, "enum": ["a"]}) == {
        "type": ["string", "null"],
        "enum": ["a", None],
    }
    assert strict({"type": "integer", "minimum": 0, "exclusiveMinimum": True}) == {
        "type": "integer",
        "exclusiveMinimum": 0,
    }
    alternatives = {"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}]}
    assert strict(alternatives)["oneOf"] == [{"required": ["a"]}]
