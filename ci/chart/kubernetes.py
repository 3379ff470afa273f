"""Kubernetes' own definitions, as kubernetes-validate ships them: strict, and without their prose."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

VERSION = "1.37.0"
"""The newest that kubernetes-validate knows: a field that an older cluster lacks is that cluster's to refuse."""

PREFIXES = ("io.k8s.api.", "io.k8s.apimachinery.pkg.")
Schema = dict[str, Any]


def definitions() -> dict[str, Schema]:
    """Every definition by its short name, as `core.v1.Toleration`; references are short too."""
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}-local-strict" / "_definitions.json"
    raw: dict[str, Schema] = json.loads(path.read_text())["$defs"]
    return {short(name): _plain(schema) for name, schema in raw.items()}


def short(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def closure(available: dict[str, Schema], wanted: Iterable[str]) -> dict[str, Schema]:
    """The wanted definitions and all that they refer to."""
    found: dict[str, Schema] = {}
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = available[name]
            todo += references(available[name])
    return dict(sorted(found.items()))


def references(schema: Any) -> Iterator[str]:
    """Names under `#/$defs/` that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(ref := schema.get("$ref"), str):
            yield ref.removeprefix("#/$defs/")
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from references(item)


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            plain[key] = f"#/$defs/{short(value.rsplit('/', 1)[-1])}"
        elif not (key in ("description", "format") and isinstance(value, str)) and not key.startswith("x-kubernetes"):
            plain[key] = _plain(value)
    return plain
