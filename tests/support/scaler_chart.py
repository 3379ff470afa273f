"""The chart llm-ray-scaler in its situations, as all tests of it look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ci.helm import SCALER_CHART

from tests.support.chart import Objects, render

SCALER_CI = tuple(sorted((SCALER_CHART / "ci").glob("*.yaml")))
SITUATIONS: dict[str, Path | None] = {"defaults": None, **{path.stem: path for path in SCALER_CI}}
NAMESPACE = "ops"

every_situation = pytest.mark.parametrize("situation", SITUATIONS)


def scaler(values: dict[str, Any] | Path | None = None, **options: Any) -> Objects:
    return render(values, chart=SCALER_CHART, namespace=NAMESPACE, **options)


def in_situation(situation: str, **options: Any) -> Objects:
    return scaler(SITUATIONS[situation], **options)
