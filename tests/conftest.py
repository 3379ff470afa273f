"""Fixtures that more than one suite needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_ray.model_store import demo_model

# As the Makefile has it, for tests that are run without it; no test module has imported torch yet.
for key, value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "DS_ACCELERATOR": "cpu"}.items():
    os.environ.setdefault(key, value)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32: 9 query heads, 3 KV heads, tied embeddings. Fetched and converted once."""
    return demo_model("float32")
