"""A Ray of several nodes on this machine, each started, labelled and ended as a pod is. Its files are its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from llm_ray.naming import GANG_NODE_LABEL, HOST_NODE_LABEL
from tests.support.ray_head import MARK, ROOT, free_port, marked

DRAIN_S = 60
START_ATTEMPTS = 4
UP = b"will now block forever"


@dataclass
class RayNodes:
    """The head, without CPUs, has the first address; a worker the next free one."""

    home: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.2:{self.port}"

    def start_head(self) -> None:
        ports = [f"--port={self.port}", f"--ray-client-server-port={free_port()}"]
        self._start("head", "127.0.0.2", {}, "--head", "--include-dashboard=false", "--num-cpus=0", *ports)

    def start_worker(self, name: str, num_cpus: int, labels: dict[str, str] | None = None) -> None:
        ip = f"127.0.0.{3 + len(self.processes)}"
        own = {"RAY_OVERRIDE_LABELS": json.dumps(labels)} if labels else {}
        self._start(name, ip, own, f"--address={self.address}", f"--num-cpus={num_cpus}")

    def start_gang(self, name: str, *num_cpus: int) -> None:
        """Its hosts in order, named NAME-0 and so on."""
        for host, cpus in enumerate(num_cpus):
            self.start_worker(f"{name}-{host}", cpus, {GANG_NODE_LABEL: name, HOST_NODE_LABEL: str(host)})

    def end(self, name: str) -> None:
        """As Kubernetes does it: the container's first process gets SIGTERM and decides how long it takes."""
        self.processes[name].send_signal(signal.SIGTERM)

    def has_ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def kill_all(self) -> None:
        while found := marked(self.mark):
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            for own in self.processes.values():
                own.wait(30)
            psutil.wait_procs(found, timeout=30)

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "OTEL_"))}
        return kept | {
            "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_S),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_agent_register_timeout_ms": "60000",
            "RAY_worker_niceness": "0",
            "HF_HUB_OFFLINE": "1",
            MARK: self.mark,
        }

    def _start(self, name: str, ip: str, env: dict[str, str], *flags: str) -> None:
        """Returns when the node is up. Ray gives its parts 15 s, too few on a busy machine; a pod is started again."""
        for _ in range(START_ATTEMPTS):
            self._spawn(name, ip, env, *flags)
            while not self.has_ended(name):
                if UP in (self.home / f"{name}.log").read_bytes():
                    return
                time.sleep(0.1)
        raise AssertionError(f"{name} did not start:\n{(self.home / f'{name}.log').read_text()[-2000:]}")

    def _spawn(self, name: str, ip: str, env: dict[str, str], *flags: str) -> None:
        self.processes[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
                *(f"--node-ip-address={ip}", f"--temp-dir={self.home / name}", "--object-store-memory=83886080"),
                *(f"--dashboard-agent-listen-port={free_port()}", "--min-worker-port=0", "--max-worker-port=0"),
                *flags,
            ],
            env=self.environment() | env,
            stdout=(self.home / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )


@contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(Path(tempfile.mkdtemp(prefix="llm-ray-", dir="/tmp")))
    try:
        nodes.start_head()
        yield nodes
    finally:
        nodes.kill_all()
        shutil.rmtree(nodes.home, ignore_errors=True)
