"""Where templates refuse, and what the line they print looks like: read from the templates themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Expression = str | list["Expression"]
"""A literal or word, or the parts of a parenthesis."""

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()]+')
CALL = re.compile(r'include "llm-ray\.(refuse|refuseAll)" (\(list .*?\)) -\}\}', re.DOTALL)
ANYTHING = ".*"


@dataclass(frozen=True)
class Site:
    """One refusal in a template, and a regular expression for the line it prints."""

    name: str
    pattern: str


def sites(folder: Path) -> Iterator[Site]:
    for path in sorted(folder.glob("*.tpl")):
        text = path.read_text()
        for call in CALL.finditer(text):
            line = text.count("\n", 0, call.start()) + 1
            for pattern in _patterns(call[1], _parse(call[2])):
                yield Site(f"{path.name}:{line}", pattern)


def _patterns(helper: str, arguments: list[Expression]) -> Iterator[str]:
    if helper == "refuse":
        if arguments[1:2] == ["$key"]:  # refuseAll's own call
            return
        key, _, limit, fix = arguments[1:]
        yield _line(_pattern(key), limit, fix)
        return
    keys, limit, fix = arguments[1:]
    for key in keys[1::2]:
        yield _line(_pattern(key), limit, fix)


def _line(key: str, limit: Expression, fix: Expression) -> str:
    return rf"{key} \(.*\) must {_pattern(limit)}: {_pattern(fix)}"


def _pattern(expression: Expression) -> str:
    if isinstance(expression, str):
        return re.escape(json.loads(expression)) if expression.startswith('"') else ANYTHING
    if expression[0] == "printf" and isinstance(expression[1], str):
        return ANYTHING.join(re.escape(part) for part in re.split(r"%[svd]", json.loads(expression[1])))
    return ANYTHING


def _parse(text: str) -> list[Expression]:
    stack: list[list[Expression]] = [[]]
    for token in TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    (whole,) = stack[0]
    assert isinstance(whole, list)
    return whole
