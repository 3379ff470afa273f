"""Fixtures that more than one suite needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_ray.model_store import demo_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32: 9 query heads, 3 KV heads, tied embeddings. Fetched and converted once."""
    return demo_model("float32")
