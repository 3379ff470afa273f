"""`llm-ray serve` as a process of its own, and what a test needs of it: addresses, numbers, ranks, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
MODEL_NAME = "SmolLM2-135M-Instruct"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class RunningApp:
    process: subprocess.Popen[str]
    url: str
    grpc: str
    log: Path

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stats(self) -> dict[str, Any]:
        status, body = self.get("/stats")
        assert status == 200, body
        return body

    def rank_pids(self) -> list[int]:
        status, body = self.get("/readyz")
        assert status == 200, body
        return [rank["pid"] for rank in body["ranks"]]

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """Ask as an operator does; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


def environment() -> dict[str, str]:
    """The developer's own Ray settings must not decide what a test sees."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return kept | {"PYTHONPATH": str(ROOT / "app"), "PYTHONUNBUFFERED": "1"}


@contextmanager
def started_app(log: Path, *flags: str) -> Iterator[RunningApp]:
    """`llm-ray serve FLAGS` on free ports, ready. It is killed at the end if a test has left it running."""
    command = [sys.executable, "-m", "llm_ray.cli", "serve", "--port=0", "--grpc-port=0", *flags]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment())
    try:
        yield RunningApp(process, *_addresses(process, log), log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.stdout is not None:
            process.stdout.close()


def _addresses(process: subprocess.Popen[str], log: Path) -> tuple[str, str]:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    line = wait_for(lambda: process.stdout.readline() or process.poll() is not None, START_TIMEOUT_S, "the app")
    assert isinstance(line, str), f"the app ended with {process.poll()}:\n{log.read_text()[-4000:]}"
    addresses = json.loads(line)
    return addresses["http"], addresses["grpc"]


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str, poll_s: float = 0.1) -> Any:
    """The condition's first true value; fails after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        time.sleep(poll_s)
    return value
