"""Strict validation, offline: kinds of Kubernetes itself, custom kinds by tests/schemas, pods by Pod Security."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
from ci.core_schemas import DEFINITIONS, MINORS, folder
from ci.manifests import Manifest, Pod
from ci.tools import binary
from referencing import Registry, Resource

SCHEMAS = Path(__file__).resolve().parents[1] / "schemas"
KUBERNETES = MINORS
KUBERAY = ("1.5", "1.6")

LONGEST_MESSAGE = 300
KEY_DEFAULTS = {"protocol": "TCP"}  # a port's; the core schemas do not carry defaults


def validate(obj: Manifest, kuberay: str = "1.6", kubernetes: str = "1.34") -> list[str]:
    """What an API server with these versions would refuse or drop, one line each; empty when it takes all of it.

    A kind without a schema is a finding too. Not judged: rules in CEL and what only a webhook or a reconciler checks.
    """
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    name = (obj.get("metadata") or {}).get("name")
    if not (isinstance(api_version, str) and isinstance(kind, str) and isinstance(name, str) and name):
        return [f"apiVersion ({api_version}), kind ({kind}) and metadata.name ({name}) must all be set to text"]
    validator = _custom(api_version, kind, kuberay) or _core(api_version, kind, kubernetes)
    if validator is None:
        return [
            f"{kind}/{name}: no schema of {api_version} {kind} for KubeRay {kuberay}, Kubernetes {kubernetes}:"
            " a wrong apiVersion or kind, or an entry that tests/schemas/sources.yaml lacks"
        ]
    errors = sorted(validator.iter_errors(obj), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{kind}/{name}: {error.json_path[2:] or 'object'}: {_short(error.message)}" for error in errors]


def _short(message: str) -> str:
    half = LONGEST_MESSAGE // 2
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:half]} … {message[-half:]}"


def schema_of(obj: Manifest, kuberay: str = "1.6") -> dict[str, Any] | None:
    """The vendored schema of a custom kind, with the defaults that an API server would fill in; None for core kinds."""
    validator = _custom(obj["apiVersion"], obj["kind"], kuberay)
    return None if validator is None else validator.schema


@functools.cache
def _custom(api_version: str, kind: str, kuberay: str) -> Any | None:
    if kuberay not in KUBERAY:
        raise ValueError(f"no schemas of KubeRay {kuberay}: there are {', '.join(KUBERAY)}")
    group, _, version = api_version.rpartition("/")
    for home in (SCHEMAS / group, SCHEMAS / f"kuberay-{kuberay}" / group):
        path = home / f"{kind.lower()}_{version}.json"
        if group and path.is_file():
            return DRAFT_7(json.loads(path.read_text()))
    return None


@functools.cache
def _core(api_version: str, kind: str, kubernetes: str) -> Any | None:
    registry = _core_definitions(kubernetes)
    group, _, version = api_version.rpartition("/")
    short = f"{group.partition('.')[0]}-{version}" if group else version
    path = folder(kubernetes) / f"{kind.lower()}-{short}.json"
    if not path.is_file():
        return None
    schema = json.loads(path.read_text())
    # file names hold the group's first part alone: apps.example.com is not apps
    exact = {"group": group, "kind": kind, "version": version}
    if exact not in schema.get("x-kubernetes-group-version-kind", []):
        return None
    return DRAFT_2020(schema, registry=registry)


@functools.cache
def _core_definitions(kubernetes: str) -> Registry[Any]:
    definitions = json.loads((folder(kubernetes) / DEFINITIONS).read_text())
    resource: Resource[Any] = Resource.from_contents(definitions)
    return resource @ Registry()


def _unique_by_keys(
    _: Any, keys: list[str], items: Any, schema: dict[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """A list that Kubernetes treats as a map may name no key twice; server-side apply refuses that."""
    if not isinstance(items, list):
        return
    seen = set()
    for item in items:
        if isinstance(item, dict):
            identity = tuple(str(item.get(key, KEY_DEFAULTS.get(key))) for key in keys)
            if identity in seen:
                yield jsonschema.ValidationError(f"two entries have {', '.join(keys)} = {', '.join(identity)}")
            seen.add(identity)


def _unique(_: Any, kind: str, items: Any, schema: dict[str, Any]) -> Iterator[jsonschema.ValidationError]:
    if kind == "set" and isinstance(items, list) and len({json.dumps(item) for item in items}) < len(items):
        yield jsonschema.ValidationError(f"entries occur twice: {json.dumps(items)}")


LISTS = {"x-kubernetes-list-map-keys": _unique_by_keys, "x-kubernetes-list-type": _unique}
DRAFT_7 = jsonschema.validators.extend(jsonschema.Draft7Validator, LISTS)
DRAFT_2020 = jsonschema.validators.extend(jsonschema.Draft202012Validator, LISTS)


def pod_security(pods: Iterable[Pod], level: str = "restricted", version: str = "latest") -> list[str]:
    """What the admission controller of Kubernetes forbids in them, one line per pod and reason."""
    done = subprocess.run(
        [str(binary("podsecurity")), "-level", level, "-version", version],
        input=json.dumps([asdict(pod) for pod in pods]), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return [
        f"{verdict['name']}: {finding['reason']} ({finding['detail']})"
        for verdict in json.loads(done.stdout)
        for finding in verdict["forbidden"]
    ]
