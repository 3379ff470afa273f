"""Alerts: promtool judges the plain rules file and what a release renders; each alert has its cases and its runbook."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci.prometheus import binary

from tests.support.chart import CHART, HELMS, render
from tests.support.promql import selectors, unknown

ROOT = CHART.parents[1]
PLAIN = CHART / "files" / "alerts.yaml"
CASES = ROOT / "tests" / "alerts"
RUNBOOKS = ROOT / "docs" / "runbooks"


def alerts_of(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    return {rule["alert"]: rule for rule in rules}


ALERTS = alerts_of(yaml.safe_load(PLAIN.read_text())["groups"])


def rendered(helm: str = "helm4", **rules: Any) -> list[dict[str, Any]]:
    objects = render({"monitoring": {"rules": {"enabled": True} | rules}}, helm=helm)
    groups: list[dict[str, Any]] = objects.find("PrometheusRule")["spec"]["groups"]
    return groups


@functools.cache
def promtool() -> Path:
    return binary("promtool")


def run_promtool(*arguments: str, cwd: Path) -> str:
    done = subprocess.run([promtool(), *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def written(folder: Path, groups: list[dict[str, Any]]) -> Path:
    folder.joinpath("alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
    return folder


def test_prometheus_reads_the_plain_file_as_it_is():
    said = run_promtool("check", "rules", "--lint=all", "--lint-fatal", PLAIN.name, cwd=PLAIN.parent)
    assert f"{len(ALERTS)} rules found" in said


@pytest.mark.parametrize("helm", HELMS)
def test_prometheus_reads_what_a_release_renders(helm: str, tmp_path: Path):
    groups = rendered(helm, alertLabels={"team": "nlp"}, runbookBaseUrl="https://runbooks.example.com")
    said = run_promtool("check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", cwd=written(tmp_path, groups))
    assert f"{len(ALERTS)} rules found" in said


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_with_these_labels_and_stays_silent_otherwise(alert: str, tmp_path: Path):
    """The cases run on what a release renders, so they also show that other releases do not set it off."""
    case = f"{alert}.test.yaml"
    shutil.copy(CASES / case, tmp_path)
    run_promtool("test", "rules", case, cwd=written(tmp_path, rendered()))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_firing_and_a_silent_case(alert: str):
    cases = yaml.safe_load((CASES / f"{alert}.test.yaml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in checks} == {alert}
    assert {bool(check.get("exp_alerts")) for check in checks} == {True, False}
    silent = [case for case in cases if not any(check.get("exp_alerts") for check in case["alert_rule_test"])]
    assert silent, "a whole case in which it never fires"


def test_no_case_is_left_of_an_alert_that_is_gone():
    assert {path.name.removesuffix(".test.yaml") for path in CASES.glob("*.yaml")} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_is_wrong(alert: str):
    rule = ALERTS[alert]
    assert re.fullmatch(r"LlmRay([A-Z][a-z]+)+", alert)
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["for"]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_names_only_series_and_labels_that_are_exported(alert: str):
    assert list(selectors(ALERTS[alert]["expr"]))
    assert unknown(ALERTS[alert]["expr"]) == []


@pytest.mark.parametrize("alert", ALERTS)
def test_a_rendered_alert_looks_at_its_own_release_alone(alert: str):
    expr = alerts_of(rendered())[alert]["expr"]
    for selector in selectors(expr):
        if not selector.series.startswith("DCGM_"):  # joined to series of the release
            assert 'namespace="serving"' in selector.matchers
            assert 'llm_ray_name="demo-llm-ray"' in selector.matchers
    assert '=~".+"' not in expr


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_says_meaning_impact_diagnosis_and_mitigation(alert: str):
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert "```sh" in text.split("## Diagnosis")[1].split("## Mitigation")[0]


def test_there_is_no_runbook_without_an_alert():
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == set(ALERTS)


def test_a_runbook_names_only_values_that_exist():
    known = set()

    def walk(values: Any, path: str) -> None:
        known.add(path)
        for key, value in values.items() if isinstance(values, dict) else ():
            walk(value, f"{path}.{key}".lstrip("."))

    walk(yaml.safe_load((CHART / "values.yaml").read_text()), "")
    for page in RUNBOOKS.glob("*.md"):
        for name in re.findall(r"`((?:[a-z]\w+\.)+\w+)`", page.read_text()):
            if name.split(".")[0] in known:
                assert name in known, f"{page.name} names {name}"


@pytest.mark.parametrize("base", ["https://example.com/runbooks", "https://example.com/runbooks/"])
def test_every_alert_links_its_runbook_when_an_address_is_given(base: str):
    for name, rule in alerts_of(rendered(runbookBaseUrl=base)).items():
        assert rule["annotations"]["runbook_url"] == f"https://example.com/runbooks/{name}.md"
    assert all("runbook_url" not in rule["annotations"] for rule in alerts_of(rendered()).values())


def test_alert_labels_are_added_and_may_replace_the_severity():
    for rule in alerts_of(rendered(alertLabels={"team": "nlp", "severity": "page"})).values():
        assert rule["labels"] == {"team": "nlp", "severity": "page"}


def test_disabled_alerts_are_left_out_with_a_group_that_has_none_left():
    groups = yaml.safe_load(PLAIN.read_text())["groups"]
    gone = [rule["alert"] for rule in groups[0]["rules"]] + ["LlmRayLatencyHigh"]
    left = rendered(disabled=gone)
    assert set(alerts_of(left)) == set(ALERTS) - set(gone)
    assert [group["name"] for group in left] == [group["name"] for group in groups[1:]]
