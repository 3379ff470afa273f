"""Combinations that cannot work are refused, each in one line with key, value, limit and fix; nothing else is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, HELMS, HelmError, render
from tests.support.refusals import Site, sites

CASES = Path(__file__).parent / "refusals"
TEMPLATES = CHART / "templates" / "validate"
HEADLINE = "these values cannot work:"


@dataclass(frozen=True)
class Case:
    """Values, and parts of the line that refuses them. `lines` is how many lines there are in all."""

    says: tuple[str, ...]
    values: dict[str, Any]
    release: str
    lines: int

    @property
    def name(self) -> str:
        return " ".join(self.says[:2])


def read_cases() -> Iterator[Case]:
    for file in sorted(CASES.glob("*.yaml")):
        for case in yaml.safe_load(file.read_text()):
            parts = tuple(str(part) for part in case["says"])
            yield Case(parts, case.get("values", {}), case.get("release", "demo"), case.get("lines", 1))


ALL = tuple(read_cases())


def refusals(case: Case, helm: str = "helm4") -> list[str]:
    """The lines that Helm prints, without the bullets; none when it renders, or fails in another way."""
    try:
        render(case.values, release=case.release, helm=helm)
    except HelmError as error:
        lines = error.message.partition(HEADLINE)[2].strip().splitlines()
        return [line.strip().removeprefix("- ") for line in lines]
    return []


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_what_cannot_work_is_refused_with_key_value_limit_and_fix(case: Case):
    lines = refusals(case)
    assert any(all(part in line for part in case.says) for line in lines), lines
    assert len(lines) == case.lines, lines


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_helm_3_refuses_in_the_same_words(case: Case):
    assert refusals(case, "helm3") == refusals(case, "helm4")


@pytest.mark.parametrize("site", tuple(sites(TEMPLATES)), ids=lambda site: site.name)
def test_every_refusal_in_the_templates_has_a_case(site: Site):
    assert any(re.fullmatch(site.pattern, line) for line in all_that_is_said()), f"no case prints {site.pattern}"


@functools.cache
def all_that_is_said() -> tuple[str, ...]:
    return tuple(line for case in ALL for line in refusals(case))


def test_all_that_is_wrong_is_said_at_once():
    values = {"image": {"tag": "latest"}, "serve": {"httpPort": 6379}, "gang": {"queue": "gold"}}
    lines = refusals(Case((), values, "7b", 4))
    assert [line.split(" (")[0] for line in lines] == [
        "the release's name",
        "image.tag",
        "serve.httpPort",
        "gang.queue",
    ]


@pytest.mark.parametrize("helm", HELMS)
def test_nothing_is_rendered_where_nothing_is_wrong(helm: str):
    text = render({}, helm=helm).text.decode()
    assert "templates/validate/" not in text


@pytest.mark.parametrize("helm", HELMS)
def test_a_key_that_is_null_is_as_if_it_were_left_out(helm: str):
    nulls = {"numOfHosts": None, "ranksPerNode": None, "env": None, "tolerations": None, "resources": None, "pdb": None}
    given = render({"workers": {"gpu": nulls}, "expose": {"ingress": {"className": None}}}, helm=helm)
    assert given.text == render({"workers": {"gpu": {}}}, helm=helm).text


def test_no_template_but_validate_refuses():
    failing = [
        path for path in (CHART / "templates").rglob("*.*") if re.search(r"\b(fail|required)\b +[(\"]", code(path))
    ]
    assert failing == [TEMPLATES / "validate.yaml"]


def code(path: Path) -> str:
    return "".join(re.findall(r"\{\{-?(?! */\*).*?\}\}", path.read_text(), re.DOTALL))
