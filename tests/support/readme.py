"""What the chart's README advises when an install is refused or nothing starts."""

from __future__ import annotations

import re

from tests.support.chart import CHART

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def advice() -> dict[str, str]:
    """By each quoted word of the first columns, a kind or a part of a message: what to do."""
    section = (CHART / "README.md").read_text().partition("\n## When it does not start\n")[2].partition("\n## ")[0]
    return {said: cure.strip() for first, cure in ROW.findall(section) for said in re.findall(r"`([^`]+)`", first)}


def advice_for(message: str) -> str:
    """What to do about a message, by its longest words that the README knows (`…` is anything); empty when none."""
    for said, cure in sorted(advice().items(), key=lambda row: len(row[0]), reverse=True):
        if re.search(re.escape(said).replace("…", ".+"), message):
            return cure
    return ""
