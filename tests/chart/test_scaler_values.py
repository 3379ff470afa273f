"""Values of charts/llm-ray-scaler: documented, used, exercised; typos, wrong types and what cannot work are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from ci.chart import schema
from ci.chart.values import Value
from ci.helm import SCALER_CHART, run_helm

from tests.support.chart import HELMS, HelmError
from tests.support.refusals import ANYTHING
from tests.support.scaler_chart import scaler
from tests.support.values import ci_values, leaves, outcome, put, settings_of

LEAVES = leaves(SCALER_CHART)
CHANGES: dict[str, tuple[str, Any]] = {
    "crd.create": ("", False),
    "global.imageRegistry": ("", "registry.example.com"),
    "image.registry": ("", "registry.example.com"),
    "image.tag": ("", "0.1.1"),
    "nameOverride": ("", "scaler"),
    "networkPolicy.enabled": ("", False),
    "rbac.aggregate": ("", False),
    "rbac.create": ("", False),
    "scaler.affinity": ("scaler-namespaces", {}),
    "scaler.pdb.enabled": ("scaler-everything", False),
    "security.containerSecurityContext": ("", {"runAsUser": 1234}),
    "security.serviceAccount.create": ("", {"create": False, "name": "scaler"}),
    "security.serviceAccount.name": ("scaler-namespaces", "other"),
}
"""Keys whose value in ci/ is the default, or does nothing beside the others there: another value, over that file."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a tag that moves": (
        {"image": {"tag": "latest"}},
        "image.tag (latest) must name one version: set it to a version, or set image.digest",
    ),
    "an account of everybody": (
        {"security": {"serviceAccount": {"create": False}}},
        'security.serviceAccount.name ("") must name an account while create is false, or every pod of the namespace'
        " could scale clusters: set it, or create to true",
    ),
    "two names of an account": (
        {"security": {"serviceAccount": {"name": "x"}}},
        "security.serviceAccount.name (x) must be empty while create is true, when the account is named after the"
        " release: take it out, or set create to false",
    ),
    "a variable of the chart's": (
        {"scaler": {"env": {"POD_NAMESPACE": "x"}}},
        "scaler.env (POD_NAMESPACE) must leave out what the chart sets itself: take it out",
    ),
}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no pod": ({"scaler": {"replicas": 0}}, "minimum"),
    "a privileged port": ({"scaler": {"healthPort": 80}}, "minimum"),
    "a namespace that cannot be": ({"watchNamespaces": ["Team_A"]}, "does not match pattern"),
    "a namespace twice": ({"watchNamespaces": ["a", "a"]}, "are equal"),
    "no quantity": ({"scaler": {"resources": {"limits": {"memory": "1 GB"}}}}, "memory"),
    "a typo": ({"scaler": {"replica": 2}}, "there is no such key here"),
    "a typo at the top": ({"watchNamespace": ["a"]}, "there is no such key here"),
}


@pytest.mark.parametrize("value", LEAVES, ids=lambda value: value.name)
def test_every_value_says_what_it_does_and_is_in_the_readme(value: Value):
    assert schema.describe(value, schema.load_defs())
    assert f"| `{value.name}` |" in (SCALER_CHART / "README.md").read_text()


def test_every_value_is_set_in_a_file_of_ci():
    assert [value.name for value in LEAVES if not list(settings_of(value, SCALER_CHART))] == []


@pytest.mark.parametrize("value", LEAVES, ids=lambda value: value.name)
def test_every_value_changes_what_is_rendered(value: Value):
    if value.name in CHANGES:
        name, change = CHANGES[value.name]
        before = ci_values(SCALER_CHART).get(name, {})
        path = value.path[:-1] if isinstance(change, dict) and value.path[-1] in change else value.path
        after = put(before, path, change)
    else:
        name, path = next(settings_of(value, SCALER_CHART))
        data: Any = ci_values(SCALER_CHART)[name]
        for key in path:
            data = data[key]
        beside = {"scaler": {"replicas": 2}} if value.path[0] == "scaler" and value.path[-1] != "replicas" else {}
        before, after = beside, put(beside, value.path, data)
    outcomes = [outcome(values, SCALER_CHART) for values in (before, after)]
    assert all(isinstance(rendered, bytes) for rendered in outcomes), outcomes
    assert outcomes[0] != outcomes[1]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_key_value_limit_and_fix(case: str, helm: str):
    values, line = REFUSED[case]
    with pytest.raises(HelmError) as refusal:
        scaler(values, helm=helm)
    assert f"- {line}" in re.sub(r"\s+", " ", refusal.value.message)


def test_every_refusal_in_the_templates_has_a_case():
    text = (SCALER_CHART / "templates" / "validate" / "_values.tpl").read_text()
    calls = re.findall(r'include "llm-ray-scaler\.refuse" \(list "([^"]+)" \S+ "([^"]+)" "([^"]+)"\)', text)
    assert len(calls) == text.count('include "llm-ray-scaler.refuse"')
    for key, limit, fix in calls:
        pattern = rf"{re.escape(key)} \({ANYTHING}\) must {re.escape(limit)}: {re.escape(fix)}"
        assert any(re.fullmatch(pattern, line) for _, line in REFUSED.values()), pattern


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_value_is_refused_by_name(case: str, helm: str):
    values, words = WRONG[case]
    with pytest.raises(HelmError) as refusal:
        scaler(values, helm=helm)
    assert words in refusal.value.message


@pytest.mark.parametrize("helm", HELMS)
def test_the_values_of_an_umbrella_are_taken(helm: str):
    assert scaler({"enabled": True, "global": {"other": {"chart": 1}}}, helm=helm)


def test_the_schema_is_one():
    made = json.loads((SCALER_CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(made)
    assert made["title"] == "llm-ray-scaler"


def notes(values: dict[str, Any]) -> str:
    command = ["install", "demo", str(SCALER_CHART), "--namespace", "ops", "--dry-run=client", "-f", "-"]
    done = run_helm("helm4", command, json.dumps(values))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().partition("\nNOTES:\n")[2]


def test_the_notes_say_what_is_looked_at_and_where_to_look():
    text = notes({})
    assert "in namespace ops looks at all namespaces." in text
    assert "logs deployment/demo-llm-ray-scaler" in text
    assert "Mind:" not in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"crd": {"create": False}}, "until the cluster has the CRD workergroupscales.llm-ray.io"),
        ({"watchNamespaces": ["a", "b"]}, "looks at the namespaces a, b."),
        ({"watchNamespaces": ["a"]}, "another release of this chart needs"),
    ],
)
def test_what_bites_is_said(values: dict[str, Any], words: str):
    assert words in notes(values)
