"""values.yaml as a tree of keys with their comments. Knows nothing of JSON schemas or of Helm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

DOC = "# -- "
SCHEMA = "# @schema "
MARKER = re.compile(r"# (>>>|<<<)")


class ChartError(Exception):
    """values.yaml says too little or contradicts itself; the message names the key and the fix."""


@dataclass(frozen=True)
class Value:
    """One key of values.yaml. `children` is empty for a leaf: a key that is annotated, or holds no map."""

    path: tuple[str, ...]
    default: Any
    doc: str
    intro: str
    annotation: dict[str, Any] | None
    children: tuple[Value, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def walk(self) -> Iterator[Value]:
        yield self
        for child in self.children:
            yield from child.walk()

    def leaves(self) -> Iterator[Value]:
        return (value for value in self.walk() if not value.children)


def parse(text: str) -> Value:
    """The whole file as one Value without a name."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    children = tuple(_children(node, yaml.safe_load(text), (), text.splitlines()))
    return Value((), {}, "", "", None, children)


def _children(
    node: yaml.MappingNode, data: dict[str, Any], parent: tuple[str, ...], lines: list[str]
) -> Iterator[Value]:
    for key, below in node.value:
        yield _value(key, below, data[key.value], (*parent, key.value), lines)


def _value(key: yaml.Node, node: yaml.Node, default: Any, path: tuple[str, ...], lines: list[str]) -> Value:
    doc, intro, annotation = _comments(lines, key.start_mark.line, ".".join(path))
    children: tuple[Value, ...] = ()
    if isinstance(node, yaml.MappingNode) and node.value and annotation is None:
        children = tuple(_children(node, default, path, lines))
    return Value(path, default, doc, intro, annotation, children)


def _comments(lines: list[str], line: int, name: str) -> tuple[str, str, dict[str, Any] | None]:
    """The `# --` text, the plain text and the `# @schema` of the comment lines directly above a key."""
    texts: dict[str, list[str]] = {DOC: [], SCHEMA: [], "": []}
    kind = ""
    for comment in _block_above(lines, line):
        if comment.startswith((DOC, SCHEMA)):
            kind = DOC if comment.startswith(DOC) else SCHEMA
        elif not comment.startswith("# "):
            raise ChartError(f"{name}: a comment starts with '# ', not {comment!r}")
        texts[kind].append(comment.removeprefix(kind or "# ").removeprefix("# "))
    annotation = yaml.safe_load(" ".join(texts[SCHEMA])) if texts[SCHEMA] else None
    if annotation is not None and not isinstance(annotation, dict):
        raise ChartError(f"{name}: @schema {annotation!r} must be a map, as {{type: string}}")
    return " ".join(texts[DOC]), " ".join(texts[""]), annotation


def _block_above(lines: list[str], line: int) -> list[str]:
    block: list[str] = []
    while line > 0 and (comment := lines[line - 1].strip()).startswith("#") and not MARKER.match(comment):
        block.insert(0, comment)
        line -= 1
    return block
