"""The charts' READMEs and docs/values.md: hand-written frames, with tables made from values.yaml and its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from ci.chart.kubernetes import Schema
from ci.chart.schema import DEFS, describe
from ci.chart.values import ChartError, Value

MARK = "<!-- values -->\n"
COVERAGE = re.compile(r"<!-- crd-coverage -->.*<!-- /crd-coverage -->", re.DOTALL)
GENERAL = "General"
LONGEST_DEFAULT = 80
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "maxLength": "at most {} characters"}


def frame(name: str) -> str:
    """A hand-written frame; its mark is where the tables go."""
    text = files("ci.chart").joinpath(name).read_text()
    if text.count(MARK) != 1:
        raise ChartError(f"ci/chart/{name}: has {text.count(MARK)} marks {MARK.strip()!r}, must have one")
    return text


def readme(root: Value, defs: Mapping[str, Schema], template: str = "README.tmpl.md") -> str:
    """Key, default and description by section."""
    return frame(template).replace(MARK, "\n".join(_short_section(*s, defs) for s in _sections(root)))


def reference(root: Value, defs: Mapping[str, Schema], present: str) -> str:
    """Everything about every key: sections with their prose, types and limits. Keeps what ci.chart.coverage wrote."""
    text = frame("values.tmpl.md").replace(MARK, "\n".join(_long_section(*s, defs) for s in _sections(root)))
    kept = COVERAGE.search(present)
    return COVERAGE.sub(lambda _: kept[0], text) if kept else text


def type_of(value: Value, defs: Mapping[str, Schema]) -> str:
    """A key's type and limits in words."""
    given = value.annotation or {}
    if "enum" in given:
        return "one of " + ", ".join(f"`{_plain(option)}`" for option in given["enum"])
    if name := _named(given):
        return name
    kinds = given.get("type") or _type_name(value.default)
    words = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return ", ".join([words, *_limits(given)])


def _named(given: Schema) -> str:
    """The name of the shape that a key refers to, directly or beside null."""
    if "$ref" in given:
        return str(given["$ref"]).removeprefix(DEFS)
    options = [option.get("$ref", "").removeprefix(DEFS) or option.get("type", "") for option in given.get("anyOf", [])]
    return " or ".join(options)


def _limits(given: Schema) -> Iterator[str]:
    for keyword, words in BOUNDS.items():
        if keyword in given:
            yield words.format(given[keyword])
    if "pattern" in given:
        yield f"matches `{given['pattern']}`"
    if "enum" in given.get("items", {}):
        yield "of " + ", ".join(f"`{option}`" for option in given["items"]["enum"])


def _type_name(default: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "map"}
    return names[type(default)]


def _sections(root: Value) -> Iterator[tuple[str, str, list[Value]]]:
    """Title, prose and keys. Top-level keys that are no section come first, together."""
    alone = [child for child in root.children if not child.children and child.path != ("workers",)]
    yield GENERAL, "", alone
    for child in root.children:
        if child.children or child.path == ("workers",):
            yield (
                child.name,
                child.intro or child.doc,
                [child, *child.walk()] if not child.children else list(child.walk()),
            )


def _short_section(title: str, prose: str, keys: list[Value], defs: Mapping[str, Schema]) -> str:
    rows = [(f"`{v.name}`", _default(v), _cell(describe(v, defs))) for v in keys if not v.children]
    return _heading(title, prose, 3) + _table(("key", "default", "what it does"), rows)


def _long_section(title: str, prose: str, keys: list[Value], defs: Mapping[str, Schema]) -> str:
    rows = []
    for value in keys:
        words = _cell(describe(value, defs))
        if not value.children:
            rows.append((f"`{value.name}`", _cell(type_of(value, defs)), _default(value), words))
        elif value.name != title and (value.intro or value.doc):
            rows.append((f"**`{value.name}`**", "", "", f"*{_cell(value.intro or value.doc)}*"))
    return _heading(title, prose, 2) + _table(("key", "type", "default", "what it does"), rows)


def _heading(title: str, prose: str, level: int) -> str:
    name = title if title == GENERAL else f"`{title}`"
    return f"{'#' * level} {name}\n\n" + (f"{prose}\n\n" if prose else "")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in dict.fromkeys(lines))


def _default(value: Value) -> str:
    text = _plain(value.default)
    if len(text) > LONGEST_DEFAULT:
        return "see values.yaml"
    return f"`{_cell(text)}`"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or not value else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
