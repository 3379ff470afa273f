"""No drift: what the API server would fill in inside a list is rendered, because a diff takes such lists whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart import CI_VALUES, render
from tests.support.validate import schema_of


def missing_defaults(
    schema: dict[str, Any], value: Any, root: dict[str, Any], path: str = "", listed: bool = False
) -> Iterator[str]:
    """Paths of fields inside lists that value leaves to the schema's default."""
    while "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    if isinstance(value, dict):
        for key, below in schema.get("properties", {}).items():
            if key in value:
                yield from missing_defaults(below, value[key], root, f"{path}.{key}", listed)
            elif listed and "default" in below:
                yield f"{path}.{key} (default {below['default']!r})"
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for key in value.keys() - schema.get("properties", {}).keys():
                yield from missing_defaults(extra, value[key], root, f"{path}.{key}", listed)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from missing_defaults(schema.get("items", {}), item, root, f"{path}[{i}]", True)


@pytest.mark.parametrize("file", CI_VALUES, ids=lambda path: path.stem)
def test_nothing_in_a_list_is_left_to_the_api_server(file):
    faults = []
    for obj in render(file):
        schema = schema_of(obj)
        if schema is not None:
            faults += [f"{obj['kind']} {path}" for path in missing_defaults(schema, obj, schema)]
    assert faults == []


def test_a_left_out_default_is_noticed():
    cluster = render().find("RayCluster")
    del cluster["spec"]["workerGroupSpecs"][0]["numOfHosts"]
    schema = schema_of(cluster)
    assert any("numOfHosts" in path for path in missing_defaults(schema, cluster, schema))
