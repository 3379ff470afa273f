"""Where the benchmarks keep what they install and write."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("LLM_RAY_CACHE", Path.home() / ".cache" / "llm-ray"))
PEERS_ENV = CACHE / "bench-vllm"
RESULTS = REPO / "build" / "bench.json"
FLEET_RESULTS = REPO / "build" / "bench-fleet.json"
REPORT = REPO / "docs" / "benchmarks.md"
