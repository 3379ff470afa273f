"""Blocks of values.yaml that mirror the app's settings, so that chart and app cannot drift apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig
from llm_ray.errors import ConfigError

CONFIGS: dict[str, type[Any]] = {c.__name__: c for c in (EngineConfig, ServerConfig, DeploymentConfig)}
ELSEWHERE = {"model", "model_name", "api_keys_file"}
"""Settings that other values say: model.source, model.name, auth.apiKeys."""

DERIVED = {
    "num_gpus_per_rank": "1 where workers have GPUs",
    "min_replicas": "what the workers hold",
    "max_replicas": "what the workers hold at most",
    "placement_strategy": "STRICT_PACK where a pod holds all ranks of a replica, else PACK, in mode hpa GANG",
    "autoscaling_policy": "requests, with autoscaling.mode hpa capacity",
}
"""Settings that the chart works out when they are null, and from what."""

BLOCK = re.compile(r"^( *)# >>> generated from (\w+) in app/llm_ray/config.py\n.*?^ *# <<<\n", re.DOTALL | re.MULTILINE)
JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def camel(name: str) -> str:
    """`start_timeout_s` → `startTimeoutS`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def chart_fields(config: type[Any]) -> list[Field[Any]]:
    return [f for f in fields(config) if f.name not in ELSEWHERE]


def updated(values_yaml: str) -> str:
    """The text of values.yaml with every generated block anew."""
    return BLOCK.sub(lambda m: _block(m[1], CONFIGS[m[2]]), values_yaml)


def _block(indent: str, config: type[Any]) -> str:
    hints = get_type_hints(config)
    lines = [f"# >>> generated from {config.__name__} in app/llm_ray/config.py"]
    for f in chart_fields(config):
        lines += _setting(f, hints[f.name], limit(config, f.name))
    return "".join(f"{indent}{line}\n" for line in [*lines, "# <<<"])


def limit(config: type[Any], name: str) -> dict[str, float]:
    """The lowest value of a setting as a keyword of JSON schema, asked of the app: it names it when it refuses -1."""
    if not isinstance(getattr(config(), name), int | float):
        return {}
    try:
        config(**{name: -1})
    except ConfigError as error:
        if found := re.match(rf"{name} \(-1\) must be (at least|above) ([0-9.]+)", str(error)):
            return {"minimum" if found[1] == "at least" else "exclusiveMinimum": float(found[2])}
    return {}


def _setting(f: Field[Any], wanted: Any, lowest: dict[str, float]) -> Iterator[str]:
    derived = DERIVED.get(f.name)
    help = _in_camel_case(f.metadata["help"])
    yield f"# -- {help[0].upper()}{help[1:]}{f'; null is {derived}' if derived else ''}."
    notes = {key: _yaml(value) for key, value in lowest.items()}
    if get_origin(wanted) is Literal:
        notes["enum"] = f"[{', '.join([*(['null'] if derived else []), *map(str, get_args(wanted))])}]"
    elif derived:
        notes = {"type": f'[{JSON_TYPES[wanted]}, "null"]', **notes}
    elif wanted is float:
        notes = {"type": "number", **notes}
    if notes:
        yield f"# @schema {{{', '.join(f'{key}: {value}' for key, value in notes.items())}}}"
    yield f"{camel(f.name)}: {'null' if derived else _yaml(f.default)}"


def _in_camel_case(help: str) -> str:
    """Other settings by the names they have in values.yaml."""
    names = {f.name for config in CONFIGS.values() for f in fields(config)}
    return re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda m: camel(m[0]) if m[0] in names else m[0], help)


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f'"{value}"' if value == "" else str(value)
