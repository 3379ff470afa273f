"""A chart's values as its tests look at them: every key, and where the files in ci/ set it. By default llm-ray's."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path as Folder
from typing import Any

import yaml
from ci.chart import values
from ci.chart.values import Value

from tests.support.chart import CHART, HelmError, render

Path = tuple[str, ...]
Data = dict[str, Any]
ANY = "*"
MAPS: dict[Path, Path] = {
    ("workerDefaults",): ("workers", ANY),
    ("fabric", "networkDefaults"): ("fabric", "networks", ANY),
}
"""Sections whose keys may also be set in each part of a map."""


@functools.cache
def root(chart: Folder = CHART) -> Value:
    return values.parse((chart / "values.yaml").read_text())


def leaves(chart: Folder = CHART) -> tuple[Value, ...]:
    return tuple(root(chart).leaves())


@functools.cache
def ci_values(chart: Folder = CHART) -> dict[str, Data]:
    """Every file in ci/ by its name."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((chart / "ci").glob("*.yaml"))}


def settings_of(value: Value, chart: Folder = CHART) -> Iterator[tuple[str, Path]]:
    """Where the files in ci/ set a key: file and path, those of a group or network included."""
    patterns = [value.path]
    for section, map_path in MAPS.items():
        if value.path[: len(section)] == section:
            patterns.append((*map_path, *value.path[len(section) :]))
    for name, data in ci_values(chart).items():
        for pattern in patterns:
            for found in _matches(data, pattern):
                yield name, found


def _matches(data: Any, pattern: Path) -> Iterator[Path]:
    if not pattern:
        yield ()
    elif isinstance(data, dict):
        for key in data if pattern[0] == ANY else {pattern[0]} & data.keys():
            for rest in _matches(data[key], pattern[1:]):
                yield key, *rest


def put(data: Data, path: Path, value: Any) -> Data:
    """A copy with one value set, sections made on the way."""
    made = copy.deepcopy(data)
    section = made
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    return made


def without(data: Data, path: Path) -> Data:
    made = copy.deepcopy(data)
    section = made
    for key in path[:-1]:
        section = section[key]
    del section[path[-1]]
    return made


def outcome(data: Data, chart: Folder = CHART) -> bytes | str:
    """What Helm renders, or how it refuses."""
    return _outcome(json.dumps(data, sort_keys=True), chart)


@functools.cache
def _outcome(text: str, chart: Folder) -> bytes | str:
    try:
        return render(json.loads(text), chart=chart).text
    except HelmError as error:
        return error.message
