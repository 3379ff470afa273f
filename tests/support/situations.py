"""The situations in charts/llm-ray/ci and the default values, rendered the same way for all tests that look at them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.chart import CI_VALUES, Objects, render

SITUATIONS: dict[str, Path | None] = {"defaults": None, **{path.stem: path for path in CI_VALUES}}
NAMESPACE = "foreign"
NAMES_FOLLOW_THE_RELEASE = ["fullnameOverride="]
EXTRA = "-banner"
"""How the name ends of an extra object that carries its own labels, not the chart's."""

every_situation = pytest.mark.parametrize("situation", SITUATIONS)


def rendered(
    situation: str,
    release: str = "demo",
    *,
    helm: str = "helm4",
    extra_args: Sequence[str] = (),
    chart_version: str | None = None,
) -> Objects:
    """In a foreign namespace, with names that follow from the release, so that two releases can be compared."""
    return render(
        SITUATIONS[situation],
        release=release,
        namespace=NAMESPACE,
        helm=helm,
        set_=NAMES_FOLLOW_THE_RELEASE,
        extra_args=extra_args,
        chart_version=chart_version,
    )
