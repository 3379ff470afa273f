"""Two running apps for the whole session: one as users run it, one with tight limits to be broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.serve.running_app import RunningApp, started_app

SMALL = ("--max-model-len=1024", "--kv-cache-bytes=134217728", "--tp=2", "--dtype=float32")


@pytest.fixture(scope="session")
def app(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Two ranks, room for 64 running and 256 waiting sequences."""
    log = tmp_path_factory.mktemp("app") / "stderr.log"
    with started_app(log, f"--model={smollm2}", *SMALL, "--step-timeout-s=120") as running:
        yield running


@pytest.fixture(scope="module")
def tight_app(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """Two ranks, 16 running and 8 waiting sequences, a step of at most 15 seconds."""
    log = tmp_path_factory.mktemp("tight") / "stderr.log"
    limits = ("--max-num-seqs=16", "--max-queue-len=8", "--max-num-batched-tokens=128", "--step-timeout-s=15")
    with started_app(log, f"--model={smollm2}", *SMALL, *limits) as running:
        yield running


@pytest.fixture(scope="session")
def client(app: RunningApp) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{app.url}/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made
