"""Read rendered manifests as Kubernetes does, and find every pod that they will make.

The scalar rules are those of Go's YAML library, and no key may stand twice in one mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Manifest = dict[str, Any]

TEMPLATED = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")

SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", list("yYnNtTfFoO")),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0[0-7]+|0x[0-9a-fA-F]+|0b[01]+)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)
"""As in Go's YAML: 12e4567 is a number (a commit id must be quoted), 10:30 and 2026-01-01 are text."""


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} occurs twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


for _kind, _pattern, _first in SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), _first)


def load(text: bytes | str) -> Any:
    """One document."""
    return yaml.load(text, _Loader)


def load_all(text: bytes | str) -> Iterator[Manifest]:
    """The documents that are not empty. A document that is no mapping is an error."""
    for document in yaml.load_all(text, _Loader):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"a rendered document is a {type(document).__name__}, not a mapping: {document!r:.80}")
        yield document


@dataclass(frozen=True)
class Pod:
    """A pod template and where it stands: `RayService/demo/head`, `RayService/demo/workers/gpu`, `Job/fetch`."""

    name: str
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Init containers included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def pod_templates(objects: Iterable[Manifest]) -> list[Pod]:
    """ValueError for an object that holds containers where this function does not look, or none where it does."""
    found: list[Pod] = []
    for document in objects:
        try:
            pods = list(_pods(document))
        except KeyError as error:
            name = f"{document['kind']}/{document['metadata']['name']}"
            raise ValueError(f"{name} lacks {error}, so the pods it makes cannot be found") from None
        if not pods and _holds_containers(document):
            raise ValueError(
                f"{document['kind']}/{document['metadata']['name']} has containers: teach pod_templates that kind"
            )
        found += pods
    return found


def _pods(document: Manifest) -> Iterator[Pod]:
    kind, spec = document["kind"], document.get("spec", {})
    name = f"{kind}/{document['metadata']['name']}"
    if kind == "Pod":
        yield Pod(name, document["metadata"], spec)
    elif kind in TEMPLATED:
        yield _pod(name, spec["template"])
    elif kind == "CronJob":
        yield _pod(name, spec["jobTemplate"]["spec"]["template"])
    elif kind == "RayCluster":
        yield from _ray_pods(name, spec)
    elif kind == "RayService":
        yield from _ray_pods(name, spec["rayClusterConfig"])


def _ray_pods(name: str, cluster: dict[str, Any]) -> Iterator[Pod]:
    yield _pod(f"{name}/head", cluster["headGroupSpec"]["template"])
    for group in cluster.get("workerGroupSpecs", []):
        yield _pod(f"{name}/workers/{group['groupName']}", group["template"])


def _pod(name: str, template: dict[str, Any]) -> Pod:
    return Pod(name, template.get("metadata", {}), template["spec"])


def _holds_containers(node: object) -> bool:
    if isinstance(node, dict):
        return isinstance(node.get("containers"), list) or any(_holds_containers(child) for child in node.values())
    return isinstance(node, list) and any(_holds_containers(child) for child in node)
