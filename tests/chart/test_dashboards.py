"""Dashboards: the rules of Grafana's dashboard linter, and that every expression names what is exported."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci.prometheus import binary
from dashboards import build
from grafana_foundation_sdk.models import units

from tests.support.chart import CHART, render
from tests.support.promql import selectors, unknown

FILES = sorted((CHART / "files" / "dashboards").glob("*.json"))
UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
LARGEST = 100_000  # bytes; the chart's files lie in every release's Secret of at most 1 MB

Board = dict[str, Any]


def boards() -> Iterator[tuple[str, Board]]:
    for path in FILES:
        yield path.stem, json.loads(path.read_text())


def panels() -> list[Any]:
    return [
        pytest.param(panel, id=f"{name}-{panel['title']}".replace(" ", "_"))
        for name, board in boards()
        for panel in board["panels"]
        if panel["type"] != "row"
    ]


def expressions(panel: Board) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def filled_in(expr: str) -> str:
    """The expression as Grafana sends it, with one choice for each variable."""
    return expr.replace("$__rate_interval", "1m").replace("$namespace", "serving").replace("$release", "demo")


def test_the_shipped_json_is_what_the_code_builds():
    assert FILES
    assert {path: path.read_text() for path in FILES} == build.generate()


@pytest.mark.parametrize(("name", "board"), list(boards()))
def test_a_dashboard_has_a_fixed_address_and_starts_from_data_source_namespace_and_release(name: str, board: Board):
    assert board["uid"] == f"llm-ray-{name}"
    assert board["editable"] is False
    assert "llm-ray" in board["tags"]
    variables = board["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "namespace", "release"]
    assert variables[0]["type"] == "datasource"
    for variable in variables[1:]:
        assert variable["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert variable["refresh"] == 2, "when the time range changes"
        assert variable["includeAll"]
        assert variable["multi"]


@pytest.mark.parametrize(("name", "board"), list(boards()))
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str, board: Board):
    numbers = [panel["id"] for panel in board["panels"]]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", panels())
def test_a_panel_is_a_time_series_with_title_description_unit_legend_and_the_chosen_data_source(panel: Board):
    assert panel["type"] == "timeseries"
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9 %]+", panel["title"])
    assert len(panel["description"]) > 60
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["options"]["legend"]["showLegend"]
    for part in (panel, *panel["targets"]):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert "{{" in target["legendFormat"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("panel", panels())
def test_a_panel_names_only_series_and_labels_that_are_exported(panel: Board):
    for expr in expressions(panel):
        assert list(selectors(expr))
        assert unknown(expr) == []


@pytest.mark.parametrize("panel", panels())
def test_the_legend_names_labels_that_the_expression_keeps(panel: Board):
    for target in panel["targets"]:
        kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
        assert kept, "every expression aggregates"
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= set(re.findall(r"\w+", kept[1]))


@pytest.mark.parametrize("panel", panels())
def test_a_panel_shows_the_chosen_releases_only(panel: Board):
    for expr in expressions(panel):
        for selector in selectors(expr):
            if not selector.series.startswith("DCGM_"):  # joined to series of the release
                assert 'namespace=~"$namespace",llm_ray_name=~"$release"' in selector.matchers


@pytest.mark.parametrize("panel", panels())
def test_counters_are_rated_over_the_interval_that_grafana_chooses_and_quantiles_keep_le(panel: Board):
    for expr in expressions(panel):
        ranges = re.findall(r"\b(?:rate|increase|irate)\([^[]*\[([^]]*)\]", expr)
        assert set(ranges) <= {"$__rate_interval"}
        counters = [s for s in selectors(expr) if s.metric.kind in ("counter", "histogram")]
        assert len(ranges) == len(counters)
        if "histogram_quantile" in expr:
            assert re.search(r"sum by \(le, ", expr)
        assert not re.search(r"_(sum|count)\b", expr), "Ray's sums are made from bucket midpoints"


@pytest.mark.parametrize("panel", panels())
def test_milliseconds_are_shown_as_milliseconds(panel: Board):
    in_ms = any("_ms_bucket" in expr for expr in expressions(panel))
    assert (panel["fieldConfig"]["defaults"]["unit"] == units.Milliseconds) == in_ms


def test_prometheus_parses_every_expression(tmp_path: Path):
    found = [
        expr
        for _, board in boards()
        for panel in board["panels"]
        for expr in expressions(panel | {"targets": panel.get("targets", [])})
    ]
    rules = [{"record": f"panel:{number}", "expr": filled_in(expr)} for number, expr in enumerate(found)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run(
        [binary("promtool"), "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(found)} rules found" in checked.stdout


def test_each_dashboard_becomes_one_config_map_that_the_sidecar_finds():
    given = {"labels": {"grafana_dashboard": "1"}, "annotations": {"grafana_folder": "LLM"}, "namespace": "grafana"}
    maps = [item for item in render({"monitoring": {"dashboards": {"enabled": True} | given}}).all("ConfigMap")]
    ours = [item for item in maps if "grafana_dashboard" in item["metadata"]["labels"]]
    assert len(ours) == len(FILES)
    for path, item in zip(FILES, ours, strict=True):
        assert item["metadata"]["namespace"] == "grafana"
        assert item["metadata"]["annotations"] == {"grafana_folder": "LLM"}
        assert item["data"] == {f"llm-ray-{path.name}": path.read_text()}


def test_dashboards_lie_in_the_release_s_namespace_unless_told_otherwise():
    objects = render({"monitoring": {"dashboards": {"enabled": True}}}, namespace="team-a")
    found = objects.find("ConfigMap", "demo-llm-ray-dashboard-overview")
    assert found["metadata"]["namespace"] == "team-a"


def test_a_dashboard_is_small_enough_for_the_release_s_secret():
    for path in FILES:
        assert path.stat().st_size < LARGEST
