"""Chart tests use real Go programs. Their first build takes minutes, so it happens before any test's clock runs."""

from __future__ import annotations

import pytest
from ci.tools import TOOLS, ToolError, binary


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or not any(item.path.match("tests/chart/*.py") for item in session.items):
        return
    try:
        for name in TOOLS:
            binary(name)
    except ToolError as error:
        raise pytest.UsageError(str(error)) from None
