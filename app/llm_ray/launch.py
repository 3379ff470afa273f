"""A private Ray with the Serve app on this machine, for `llm-ray serve`, the demo and the tests; gone when it ends.

It never joins a Ray that is already there, and nothing it starts outlives it.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig
from llm_ray.errors import ConfigError, LLMRayError

MARK = "LLM_RAY_LAUNCH"
"""Environment variable that every process of one launch inherits, so that none is missed at the end."""

OBJECT_STORE_BYTES = 80 << 20  # Ray's minimum is 75 MiB; tokens do not pass through it
SERVE_PROCESSES = 2
START_ATTEMPTS = 3
LARGEST_PORT = 65535
LONGEST_TEMP_DIR = 40  # Ray adds 62 characters, and a Unix socket's path may have 107
GRPC_SERVICERS = ["llm_ray.api.proto.llmray.v1.inference_pb2_grpc.add_InferenceServicer_to_server"]


@dataclass(frozen=True)
class Endpoints:
    """Where the running app listens."""

    host: str
    port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"


@contextmanager
def running(
    engine: EngineConfig,
    server: ServerConfig,
    deployment: DeploymentConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    grpc_port: int = 0,
    show_logs: bool = True,
) -> Iterator[Endpoints]:
    """Start Ray and the app, yield its addresses once it answers, and stop everything. Port 0 is any free one.

    Ray prints to stdout; inside, sys.stdout is stderr, or nothing without show_logs. Keep your own for data.
    Raises ConfigError for a port in use, LLMRayError with the cause when the app cannot start.
    """
    if deployment.placement_strategy == "GANG":
        raise ConfigError("placement_strategy (GANG) is for clusters of labelled nodes: here is one node, use PACK")
    endpoints = Endpoints(host, _port(host, port, "port"), _port(host, grpc_port, "grpc_port"))
    stdout = sys.stderr if show_logs else None
    with _cleared_away() as home, open(os.devnull, "w") as nowhere, redirect_stdout(stdout or nowhere):
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            _start_ray(engine, deployment, home, show_logs)
            _exit_on_sigterm()
            _start_serve(endpoints)
            once = replace(deployment, max_start_attempts=1)  # somebody waits, and a second try would fail the same way
            _deploy({"engine": asdict(engine), "server": asdict(server), "deployment": asdict(once)})
            yield endpoints
        finally:
            if ray.is_initialized():  # or Serve would start, or join, a Ray of its own
                with redirect_stdout(nowhere):  # Ray reports its own end as a failure
                    serve.shutdown()  # type: ignore[no-untyped-call]
                    ray.shutdown()


@contextmanager
def _cleared_away() -> Iterator[Path]:
    """A directory for Ray. It and every process started meanwhile are gone in the end, even if this one is killed.

    A second process waits for that end: it outlives this one, however that ends, and a second Ctrl-C as well.
    """
    mark = secrets.token_hex(8)
    home = _temp_dir()
    command = [sys.executable, "-m", "llm_ray.launch", mark, str(home)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    ):
        _set_environment(mark)
        yield home


def _clear_away(mark: str, home: Path) -> None:
    """The second process: stdin ends with the first."""
    sys.stdin.buffer.read()
    _end_leftovers(mark)
    shutil.rmtree(home, ignore_errors=True)


def _exit_on_sigterm() -> None:
    """Let SIGTERM end the process as Ctrl-C does, through every `finally`. After ray.init, which sets its own."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def wait_for_interrupt() -> None:
    """Return at Ctrl-C or SIGTERM, the usual end of a server."""
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _set_environment(mark: str) -> None:
    """Before Ray is imported. A token of its own keeps other users of this machine out and writes no file."""
    os.environ[MARK] = mark
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for key, value in {
        "RAY_worker_niceness": "0",  # Ray's 15 starves the ranks beside anything else that runs here
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_LOG_TO_STDERR": "1" if os.environ.get("LLM_RAY_DEBUG") else "0",  # to its log files in any case
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "OMP_NUM_THREADS": "1",
    }.items():
        os.environ.setdefault(key, value)


def _start_ray(engine: EngineConfig, deployment: DeploymentConfig, home: Path, show_logs: bool) -> None:
    import ray

    ranks = engine.world_size * engine.num_cpus_per_rank
    # Logical CPUs: more ranks than cores only get slower. Ray starts so many idle processes ahead, which Serve's
    # controller and proxy, the replica and its ranks then take over; one that is missing costs seconds.
    num_cpus = math.ceil(deployment.max_replicas * (deployment.replica_num_cpus + ranks)) + SERVE_PROCESSES
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=show_logs,
                logging_level=logging.WARNING,
                _temp_dir=str(home),
            )
            return
        except Exception as error:  # Ray's own class: it gives its raylet 30 s, too few on a very busy machine
            ray.shutdown()
            _end_leftovers(os.environ[MARK])
            if attempt == START_ATTEMPTS:
                raise LLMRayError(f"Ray did not start in {START_ATTEMPTS} attempts: {error}") from error


def _start_serve(endpoints: Endpoints) -> None:
    from ray import serve

    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": endpoints.host, "port": endpoints.port},
        grpc_options={"port": endpoints.grpc_port, "grpc_servicer_functions": GRPC_SERVICERS},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )


def _deploy(args: dict[str, Any]) -> None:
    from ray import serve

    from llm_ray.serve import APP_NAME, build

    try:
        serve.run(build(args), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        app = serve.status().applications.get(APP_NAME)
        told = [deployment.message for deployment in app.deployments.values()] if app else []
        raise LLMRayError(_cause("\n".join([*told, app.message if app else "", str(error)]))) from error


def _cause(message: str) -> str:
    """The line of the replica's traceback that names one of our errors, or else all of it."""
    ours = [line.strip() for line in message.splitlines() if line.strip().startswith("llm_ray.errors.")]
    return ours[0].partition(": ")[2] if ours else message


def _port(host: str, port: int, name: str) -> int:
    if not 0 <= port <= LARGEST_PORT:
        raise ConfigError(f"{name} ({port}) must be between 0 and {LARGEST_PORT}: 0 is any free one")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"host ({host}) with {name} ({port}) cannot be listened on: {error.strerror}: "
                "choose an address of this machine and a free port, or 0 for any"
            ) from error
        return int(sock.getsockname()[1])


def _temp_dir() -> Path:
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="llm-ray-", dir=base if len(base) < LONGEST_TEMP_DIR - 16 else "/tmp"))


def _end_leftovers(mark: str) -> None:
    """Kill whatever carries the launch's mark and is still there."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _clear_away(sys.argv[1], Path(sys.argv[2]))
