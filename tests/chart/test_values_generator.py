"""values.yaml says enough of every key to make schema and documents of it, and the app's settings are among it."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from typing import Any

import jsonschema
import pytest
from ci.chart import docs, schema, settings, values
from ci.chart.__main__ import generate
from ci.chart.values import ChartError

from llm_ray.errors import ConfigError
from tests.support.chart import CHART, render

MINIMAL = """
# What every group has.
workerDefaults:
  # -- Groups.
  # @schema {minimum: 0}
  replicas: 1
# The rest.
fabric:
  networkDefaults:
    # -- Devices.
    count: 1
"""
SECTIONS = {"EngineConfig": "engine", "ServerConfig": "serve.server", "DeploymentConfig": "serve.deployment"}
LATER = {"pipeline_parallel_size"}
"""Settings whose limit in the app is that of one version of it; NOTES says so."""

NUMBERS = (int, float)
FIELDS = [(name, f) for name, config in settings.CONFIGS.items() for f in settings.chart_fields(config)]

COUNTS = [(name, f) for name, f in FIELDS if type(f.default) in NUMBERS and f.name not in LATER]


def schema_of(text: str) -> dict[str, Any]:
    return schema.build(values.parse(MINIMAL + text), schema.load_defs())


def default_of(path: str) -> Any:
    found = {value.name: value for value in values.parse((CHART / "values.yaml").read_text()).walk()}
    return found[path].default


def chart_schema() -> dict[str, Any]:
    return schema.build(values.parse((CHART / "values.yaml").read_text()), schema.load_defs())


def test_the_generated_files_are_up_to_date():
    assert [path.name for path, text in generate().items() if path.read_text() != text] == []


@pytest.mark.parametrize("default", ["{}", "[]", "null"])
def test_a_default_that_says_no_type_needs_one(default: str):
    with pytest.raises(ChartError, match=r"loads .* says no type"):
        schema_of(f"# -- Loads.\nloads: {default}\n")


def test_a_key_without_a_word_on_it_is_an_error():
    with pytest.raises(ChartError, match="silent is not documented"):
        schema_of("silent: 1\n")


def test_a_shape_that_is_not_defined_is_an_error():
    with pytest.raises(ChartError, match=r"a: #/\$defs/typo is not defined"):
        schema_of('# -- A.\n# @schema {$ref: "#/$defs/typo"}\na: {}\n')


def test_a_comment_must_be_one():
    with pytest.raises(ChartError, match="starts with '# '"):
        schema_of("#-- A.\na: 1\n")


def test_types_follow_from_defaults_and_comments_go_over_them():
    made = schema_of(
        "# -- A\n# and more.\n# @schema {minimum: 1,\n# maximum: 9}\na: 1\n# -- B.\nb: 1.5\n# -- C.\nc: yes\n"
    )
    assert made["properties"]["a"] == {"description": "A and more.", "type": "integer", "minimum": 1, "maximum": 9}
    assert made["properties"]["b"]["type"] == "number"
    assert made["properties"]["c"]["type"] == "boolean"
    assert {"a", "b", "c"} <= set(made["required"])
    unknown = made["additionalProperties"]
    check = jsonschema.Draft7Validator(unknown)
    assert "there is no such key here; correct it to one of a, b, c, enabled, " in unknown["const"]
    assert not any(check.is_valid(value) for value in (None, 1, {}, "x", unknown["const"]))


def test_a_group_may_leave_out_or_null_every_key_but_adds_none():
    made = schema_of('# -- Groups.\n# @schema {$ref: "#/$defs/workers"}\nworkers: {}\n')
    check = jsonschema.Draft7Validator(made["$defs"]["workers"])
    assert not list(check.iter_errors({"a": {"replicas": None}, "b": {}, "c": None, "d": {"replicas": 2}}))
    for bad in ({"a": {"replica": 2}}, {"a": {"replicas": -1}}, {"a": {"replicas": "2"}}, {"a": 1}):
        assert list(check.iter_errors(bad)), bad


def test_only_what_is_used_is_defined_and_the_schema_is_one():
    made = chart_schema()
    jsonschema.Draft7Validator.check_schema(made)
    text = str(made)
    assert [name for name in made["$defs"] if f"'#/$defs/{name}'" not in text] == []


def test_the_table_of_crd_fields_is_kept():
    root = values.parse((CHART / "values.yaml").read_text())
    table = "<!-- crd-coverage -->\n| a |\n<!-- /crd-coverage -->"
    assert table in docs.reference(root, schema.load_defs(), f"old\n{table}\nold")


@pytest.mark.parametrize(("config", "f"), FIELDS, ids=lambda p: getattr(p, "name", p))
def test_each_setting_of_the_app_is_a_value(config: str, f: Field[Any]):
    default = default_of(f"{SECTIONS[config]}.{settings.camel(f.name)}")
    assert default == (None if f.name in settings.DERIVED else f.default)


def test_each_value_of_these_sections_is_a_setting_of_the_app():
    for config, section in SECTIONS.items():
        names = [settings.camel(f.name) for f in settings.chart_fields(settings.CONFIGS[config])]
        assert list(default_of(section)) == names


def test_the_settings_that_other_values_say_are_all_of_the_others():
    everything = {f.name for config in settings.CONFIGS.values() for f in fields(config)}
    assert everything - {f.name for _, f in FIELDS} == settings.ELSEWHERE


@pytest.mark.parametrize(("config", "f"), COUNTS, ids=lambda p: getattr(p, "name", p))
def test_a_number_is_refused_by_the_schema_where_the_app_refuses_it(config: str, f: Field[Any]):
    section = chart_schema()
    for step in SECTIONS[config].split("."):
        section = section["properties"][step]
    check = jsonschema.Draft7Validator(section["properties"][settings.camel(f.name)])
    for number in (-1, 0, 1):
        assert check.is_valid(number) == app_takes(config, f.name, number), number


def app_takes(config: str, name: str, number: int) -> bool:
    beside = {"max_num_seqs": 1} if name == "max_num_batched_tokens" else {}
    beside |= {"min_replicas": 0} if name == "max_replicas" else {}
    try:
        settings.CONFIGS[config](**{**beside, name: number})
    except ConfigError:
        return False
    return True


def test_the_start_in_the_readme_names_what_is_rendered():
    text = (CHART / "README.md").read_text()
    (release,) = re.findall(r"helm install (\S+)", text)
    (service,) = re.findall(r"service/(\S+)", text)
    (name,) = re.findall(r"llm-ray\.io/name=(\S+)", text)
    assert render(release=release).find("Service", service)["metadata"]["labels"]["llm-ray.io/name"] == name
