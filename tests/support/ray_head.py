"""A Ray head with its dashboard, as a container has one: it can be killed and started again. Its files are its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
MARK = "LLM_RAY_TEST_HEAD"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def marked(mark: str) -> list[psutil.Process]:
    """Every process that inherited the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if wanted in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


@dataclass
class RayHead:
    home: Path
    ip = "127.0.0.2"  # for 127.0.0.1 Ray takes the address of the first interface
    env: dict[str, str]
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    dashboard_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start(self) -> None:
        """Answers at once; the dashboard comes some seconds later."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "OTEL_"))}
        own = {
            "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            MARK: self.mark,
        }
        ports = [f"--dashboard-port={self.dashboard_port}", f"--port={free_port()}"]
        ports += [f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"),
                *(f"--node-ip-address={self.ip}", "--include-dashboard=true", "--object-store-memory=83886080"),
                *(f"--temp-dir={self.home}", "--disable-usage-stats", *ports),
            ],
            env=kept | own | self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Every process that inherited the mark, as when a container dies."""
        while found := marked(self.mark):  # one may have started another meanwhile
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            if self.process is not None:
                self.process.wait(30)
            psutil.wait_procs(found, timeout=30)

    def restart(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        self.start()


@contextmanager
def ray_head(**env: str) -> Iterator[RayHead]:
    head = RayHead(Path(tempfile.mkdtemp(prefix="llm-ray-", dir="/tmp")), env)
    try:
        head.start()
        yield head
    finally:
        head.kill()
        shutil.rmtree(head.home, ignore_errors=True)
