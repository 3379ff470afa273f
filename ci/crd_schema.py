"""Turn a CustomResourceDefinition's schema into a strict, compact JSON schema: data in, data out.

Strict: a field that the API server would drop in silence is refused. Rules in CEL have no counterpart and are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

JSON = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
COPIED = (
    "default", "enum", "format", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "pattern", "required", "type", "uniqueItems",
    "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
)  # fmt: skip
SHARED_FROM = 160  # characters; shorter repeats are cheaper written out
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]

STRING: JSON = {"type": "string"}
STRINGS: JSON = {"additionalProperties": STRING, "type": "object"}
OBJECT_META: JSON = {
    "additionalProperties": False,
    "properties": {
        "annotations": STRINGS, "creationTimestamp": {"type": ["string", "null"]},
        "deletionGracePeriodSeconds": {"type": "integer"}, "deletionTimestamp": STRING,
        "finalizers": {"items": STRING, "type": "array"}, "generateName": STRING, "generation": {"type": "integer"},
        "labels": STRINGS, "managedFields": {"items": {"type": "object"}, "type": "array"}, "name": STRING,
        "namespace": STRING, "ownerReferences": {"items": {"type": "object"}, "type": "array"},
        "resourceVersion": STRING, "selfLink": STRING, "uid": STRING,
    },
    "type": "object",
}  # fmt: skip


def crd_schema(crd: JSON, version: str) -> JSON:
    """The schema of a whole object of that version."""
    group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
    found = [entry for entry in crd["spec"]["versions"] if entry["name"] == version]
    if not found:
        raise ValueError(f"{kind}.{group} has no version {version}")
    schema = strict(found[0]["schema"]["openAPIV3Schema"])
    schema["properties"] |= {
        "apiVersion": {"enum": [f"{group}/{version}"]},
        "kind": {"enum": [kind]},
        "metadata": OBJECT_META,
    }
    schema["required"] = sorted({"apiVersion", "kind", "metadata", *schema.get("required", [])})
    return {"$schema": DIALECT, **share(schema)}


def strict(node: JSON, *, structural: bool = True) -> JSON:
    """One schema of OpenAPI 3 as Kubernetes uses it. Inside anyOf and its like only values are judged, not fields."""
    made = {name: node[name] for name in COPIED if name in node}
    if "pattern" in made:
        made["pattern"] = _pattern(made["pattern"])
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if node.get(exclusive):
            made[exclusive] = made.pop(bound)
    if "items" in node:
        made["items"] = strict(node["items"], structural=structural)
    if "properties" in node:
        made["properties"] = {name: strict(child, structural=structural) for name, child in node["properties"].items()}
    if isinstance(node.get("additionalProperties"), dict):
        made["additionalProperties"] = strict(node["additionalProperties"], structural=structural)
    elif node.get("additionalProperties") is False or (structural and _closed(node)):
        made["additionalProperties"] = False
    for junctor in ("allOf", "anyOf", "oneOf"):
        if junctor in node:
            made[junctor] = [strict(child, structural=False) for child in node[junctor]]
    if "not" in node:
        made["not"] = strict(node["not"], structural=False)
    if node.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
        if made.get("anyOf") == INT_OR_STRING:
            del made["anyOf"]
    if node.get("nullable"):
        _allow_null(made)
    return made


def _pattern(text: str) -> str:
    """The expression as both Go and Python read it: Python wants flags first or around what they govern."""
    portable = re.sub(r"^\^\(\?i\)(\([^()]*\)[?*+]?)\$$", r"^(?i:\1)$", text)
    re.compile(portable)
    return portable


def _closed(node: JSON) -> bool:
    is_open = node.get("x-kubernetes-preserve-unknown-fields") or node.get("additionalProperties") is True
    return node.get("type") == "object" and not is_open


def _allow_null(made: JSON) -> None:
    kinds = made.get("type", [])
    if kinds:
        made["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    if "enum" in made and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]


def share(schema: JSON) -> JSON:
    """The same schema with each large part that occurs in several places written once, under `definitions`."""
    uses: Counter[str] = Counter()
    _count_uses(schema, uses)
    names: dict[str, str] = {}
    definitions: dict[str, JSON] = {}

    def rebuild(node: JSON, hint: str) -> JSON:
        text = _text(node)
        if uses[text] < 2 or len(text) < SHARED_FROM:
            return _with_children(node, hint, rebuild)
        if text not in names:
            taken = sum(1 for name in names.values() if re.fullmatch(rf"{re.escape(hint)}\d*", name))
            names[text] = f"{hint}{taken + 1}" if taken else hint
            definitions[names[text]] = _with_children(node, hint, rebuild)
        return {"$ref": f"#/definitions/{names[text]}"}

    made = _with_children(schema, "root", rebuild)
    return {**made, "definitions": definitions} if definitions else made


def _count_uses(schema: JSON, uses: Counter[str]) -> None:
    """How many places ask for each part, a part that occurs only inside a shared one counting once."""

    def visit(node: JSON, hint: str) -> JSON:
        text = _text(node)
        uses[text] += 1
        if uses[text] == 1:
            _with_children(node, hint, visit)
        return node

    _with_children(schema, "root", visit)


def _with_children(node: JSON, hint: str, change: Any) -> JSON:
    """A copy of the schema whose direct sub-schemas went through change(child, the name it goes by)."""
    made = dict(node)
    for name in ("items", "additionalProperties", "not"):
        if isinstance(made.get(name), dict):
            made[name] = change(made[name], hint)
    if "properties" in made:
        made["properties"] = {name: change(child, name) for name, child in sorted(made["properties"].items())}
    for junctor in ("allOf", "anyOf", "oneOf"):
        if junctor in made:
            made[junctor] = [change(child, hint) for child in made[junctor]]
    return made


def _text(node: JSON) -> str:
    return json.dumps(node, sort_keys=True)
