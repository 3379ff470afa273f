"""The fields of KubeRay's RayCluster and RayService, counted one way: KubeRay's own down to their leaves, and of a
Kubernetes type inside them (a pod, its containers, a Service) each direct field as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KUBERAY = "1.6"
ONE_LEVEL = (
    "template.metadata",
    "template.spec",
    "containers[]",
    "initContainers[]",
    "Service.metadata",
    "Service.spec",
)
"""Where the Kubernetes types are whose fields count as one each, however deep they are themselves."""
NOT_SPEC = ("Service.status",)
Schema = dict[str, Any]


@dataclass(frozen=True)
class CrdField:
    """One field below `spec`, e.g. workerGroupSpecs[].template.spec.containers[].env."""

    path: str
    schema: Schema = field(repr=False, compare=False)

    @property
    def keys(self) -> list[str]:
        """The steps; a list is one, named with []."""
        return self.path.split(".")


def schema_of(kind: str, kuberay: str = KUBERAY) -> Schema:
    path = ROOT / "tests" / "schemas" / f"kuberay-{kuberay}" / "ray.io" / f"{kind.lower()}_v1.json"
    schema: Schema = json.loads(path.read_text())
    return schema


def crd_fields(kind: str) -> list[CrdField]:
    """Every field of the kind's spec, sorted by path."""
    root = schema_of(kind)
    found = _below("", root["properties"]["spec"], root)
    return sorted(found, key=lambda f: f.path)


def _below(path: str, node: Schema, root: Schema) -> Iterator[CrdField]:
    node = _resolved(node, root)
    children = node.get("properties", {})
    for key, child in children.items():
        below = f"{path}.{key}" if path else key
        if below.endswith(NOT_SPEC):
            continue
        child = _resolved(child, root)
        items = _resolved(child.get("items", {}), root)
        if items.get("properties") and _expanded(f"{below}[]", path):
            yield from _below(f"{below}[]", items, root)
        elif child.get("properties") and _expanded(below, path):
            yield from _below(below, child, root)
        else:
            yield CrdField(below, child)


def _expanded(path: str, parent: str) -> bool:
    """Does `path` go on, or is it one field of the Kubernetes type above it?"""
    return path.endswith(ONE_LEVEL) or (not parent.endswith(ONE_LEVEL) and not _kubernetes_type(path))


def _kubernetes_type(path: str) -> bool:
    """Types of the core API that a field of KubeRay holds as a whole."""
    whole = ("env[]", "envFrom[]", "volumeMounts[]", "resources", "securityContext", "redisPassword", "redisUsername")
    return path.rpartition(".")[2] in whole


def _resolved(node: Schema, root: Schema) -> Schema:
    while "$ref" in node:
        node = root["definitions"][node["$ref"].rpartition("/")[2]]
    return node


def sample(schema: Schema, root: Schema, other_than: Any = None) -> Any:
    """A value the schema allows, another than the one given."""
    node = _resolved(schema, root)
    if "enum" in node:
        return next(value for value in node["enum"] if value != other_than)
    kind = node.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "boolean" in kinds:
        return other_than is not True
    if "integer" in kinds:
        return 7 if other_than != 7 else 8
    if "array" in kinds:
        return [sample(node["items"], root)]
    if "string" in kinds:
        return "sample"
    return _sample_object(node, root)


def _sample_object(node: Schema, root: Schema) -> dict[str, Any]:
    if "properties" in node:
        keys = node.get("required") or list(node["properties"])[:1]
        return {key: sample(node["properties"][key], root) for key in keys}
    values = node.get("additionalProperties")
    return {"sample": sample(values, root) if isinstance(values, dict) else "sample"}


def present(spec: Mapping[str, Any], path: str) -> bool:
    """Does the spec set the field anywhere?"""
    return bool(values_at(spec, path))


def values_at(spec: Any, path: str) -> list[Any]:
    """All values at the path; a list on the way contributes each of its items."""
    nodes = [spec]
    for key in path.split("."):
        name = key.removesuffix("[]")
        nodes = [node[name] for node in nodes if isinstance(node, Mapping) and name in node]
        if key.endswith("[]"):
            nodes = [item for node in nodes for item in node]
    return nodes
