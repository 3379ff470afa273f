"""values.schema.json from values.yaml: types from the defaults, `# @schema` over them, unknown keys refused."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

from ci.chart import kubernetes
from ci.chart.kubernetes import Schema
from ci.chart.values import ChartError, Value

DEFS = "#/$defs/"
K8S = "k8s:"
OPEN = "global"
"""The one section that other charts of an umbrella share, so that unknown keys are none of our business there."""

MAPS = {"workers": "workerDefaults", "networks": "fabric.networkDefaults"}
"""Definitions made here: maps of parts by name, each with the keys of a section that differ from it."""

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def load_defs() -> dict[str, Schema]:
    text = files("ci.chart").joinpath("defs.yaml").read_text()
    return dict(yaml.safe_load(text))


def build(root: Value, defs: Mapping[str, Schema], title: str = "llm-ray") -> Schema:
    """The schema of the whole file. `enabled` is what an umbrella's condition puts among our values."""
    available = kubernetes.definitions()
    own = {name: _resolved(schema, available) for name, schema in defs.items()}
    sections = {value.name: value for value in root.walk()}
    own |= {name: _map_of(sections[defaults], own) for name, defaults in MAPS.items() if defaults in sections}
    body = _object(root, own)
    body["properties"]["enabled"] = {"type": "boolean"}
    used = kubernetes.closure({**available, **own}, kubernetes.references(body))
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **body, "$defs": used}
    return dict(with_known_keys(whole))


def with_known_keys(schema: Any) -> Any:
    """The schema, in which an unknown key is refused with the keys that there are.

    A plain `false` makes Helm say that a key is not allowed, and nothing else. It prints a const as it is, after
    `value must be`; nothing is that value, because `not` excludes it.
    """
    if isinstance(schema, list):
        return [with_known_keys(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    told = {key: with_known_keys(below) for key, below in schema.items()}
    if told.get("additionalProperties") is False and told.get("properties"):
        keys = ", ".join(sorted(told["properties"]))
        words = f"left out: there is no such key here; correct it to one of {keys}, or take it away"
        told["additionalProperties"] = {"const": words, "not": {"const": words}}
    return told


def describe(value: Value, defs: Mapping[str, Schema]) -> str:
    """What a key is for: its own words, else those of the shape it has."""
    ref = (value.annotation or {}).get("$ref", "").removeprefix(DEFS)
    return value.doc or defs.get(ref, {}).get("description", "")


def _object(value: Value, defs: Mapping[str, Schema]) -> Schema:
    """A section. A key with a default is required, because only `null` can take it away."""
    is_open = value.name == OPEN
    required = [c.path[-1] for c in value.children if c.default is not None and c.name != OPEN]
    schema: Schema = {"type": "object", "properties": {c.path[-1]: _property(c, defs) for c in value.children}}
    if is_open:
        schema["properties"] = {key: nullable(below, defs) for key, below in schema["properties"].items()}
    elif required:
        schema["required"] = required
    return {**schema, "additionalProperties": is_open}


def _property(value: Value, defs: Mapping[str, Schema]) -> Schema:
    schema = _object(value, defs) if value.children else _leaf(value, defs)
    words = describe(value, defs) or value.intro
    if not words and (not value.children or len(value.path) == 1):
        raise ChartError(f"{value.name} is not documented: put `# -- what it does` above it")
    return {"description": words, **schema} if words else schema


def _leaf(value: Value, defs: Mapping[str, Schema]) -> Schema:
    given = value.annotation or {}
    if "$ref" in given:
        _known(value, given["$ref"], defs)
        others = {key: below for key, below in given.items() if key != "$ref"}
        return {"allOf": [{"$ref": given["$ref"]}, others]} if others else {"$ref": given["$ref"]}
    if {"type", "enum", "anyOf"} & given.keys():
        return dict(given)
    if isinstance(value.default, list) and "items" in given:
        return {"type": "array", **given}
    if isinstance(value.default, dict) and "additionalProperties" in given:
        return {"type": "object", **given}
    if type(value.default) not in JSON_TYPES:
        raise ChartError(f"{value.name} ({value.default!r}) says no type: put `# @schema {{…}}` above it")
    return {"type": JSON_TYPES[type(value.default)], **given}


def _known(value: Value, ref: str, defs: Mapping[str, Schema]) -> None:
    if ref.removeprefix(DEFS) not in {*defs, *MAPS}:
        raise ChartError(f"{value.name}: {ref} is not defined: add it to ci/chart/defs.yaml")


def _resolved(schema: Any, available: Mapping[str, Schema]) -> Any:
    """Replace `k8s:` references, and copy the definition where properties of it are left out."""
    if isinstance(schema, list):
        return [_resolved(item, available) for item in schema]
    if not isinstance(schema, dict):
        return schema
    ref = str(schema.get("$ref", ""))
    if not ref.startswith(K8S):
        return {key: _resolved(below, available) for key, below in schema.items()}
    name = ref.removeprefix(K8S)
    without = schema.get("without", [])
    if not without:
        return {**schema, "$ref": DEFS + name}
    whole = available[name]
    left = [key for key in whole.get("required", []) if key not in without]
    part = {**whole, "properties": {k: v for k, v in whole["properties"].items() if k not in without}}
    part.pop("required", None)
    return {**part, "required": left} if left else part


def _map_of(defaults: Value, defs: Mapping[str, Schema]) -> Schema:
    """A map of parts, each key optional. Their names are checked by validate.yaml, where the message can say why."""
    return {"type": ["object", "null"], "additionalProperties": _partial(_object(defaults, defs), defs)}


def _partial(section: Schema, defs: Mapping[str, Schema]) -> Schema:
    """A section in which every key may be missing or null."""
    properties = {}
    for key, schema in section["properties"].items():
        plain = {k: v for k, v in schema.items() if k != "description"}
        properties[key] = _partial(plain, defs) if "properties" in plain else nullable(plain, defs)
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def nullable(schema: Schema, defs: Mapping[str, Schema]) -> Schema:
    """The schema, which also takes null."""
    if "enum" in schema:
        options = schema["enum"]
        return _with_null_type({**schema, "enum": options if None in options else [*options, None]})
    if "type" in schema:
        return _with_null_type(schema)
    if _takes_null(schema, defs):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def _with_null_type(schema: Schema) -> Schema:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return schema if not kinds or "null" in kinds else {**schema, "type": [*kinds, "null"]}


def _takes_null(schema: Any, defs: Mapping[str, Schema]) -> bool:
    """Whether a reference or anyOf takes null already. Kubernetes' own shapes all do."""
    if "anyOf" in schema:
        return any(_takes_null(option, defs) for option in schema["anyOf"])
    name = str(schema.get("$ref", "")).removeprefix(DEFS)
    if name in defs:
        return _takes_null(defs[name], defs)
    return "null" in schema.get("type", []) if not name else True
