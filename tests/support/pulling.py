"""`llm-ray model …` as an init container runs it: a process of its own with nothing but what it is given."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

APP = Path(__file__).parents[2] / "app"


def environment(home: Path, **extra: str) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "HF_HOME": str(home / "hf"),
        "PYTHONPATH": str(APP),
    } | extra


def model(*args: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), env=env, capture_output=True, text=True, timeout=120, check=False)


def start(*args: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*args), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "llm_ray.cli", "model", *args]


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        time.sleep(0.05)
    return value


def contents(directory: Path) -> dict[str, bytes]:
    """Of the files that are no bookkeeping."""
    own = {"complete.json", "source.json"}
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {n: p.read_bytes() for n, p in files.items() if n not in own and not n.startswith(".")}
