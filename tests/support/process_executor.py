"""Ranks in spawned processes behind pipes: tensor parallelism for tests, without Ray.

The processes outlive an executor, so that many small models can be served one after another by the same pair.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from llm_ray.config import EngineConfig
from llm_ray.engine.step import ExecutorInfo, StepPlan, StepResult
from llm_ray.errors import ConfigError, ExecutorError

REPLY_TIMEOUT_S = 120.0


def _host(connection: Connection, rank: int, world_size: int) -> None:
    """One rank's process: `make` builds a worker, every other message is a call on it or on the memory probe."""
    from llm_ray.worker.parallel import Rank
    from llm_ray.worker.worker import Worker
    from tests.support.memory import private_bytes

    worker: Any = None
    while True:
        name, args = connection.recv()
        if name == "exit":
            return
        try:
            if name == "make":
                worker, value = Worker(args[0], Rank.of(rank, 1, world_size)), None
            elif name == "private_bytes":
                value = private_bytes()
            else:
                attribute = getattr(worker, name)
                value = attribute(*args) if callable(attribute) else attribute
            connection.send((value, None))
        except ConfigError as error:
            connection.send((None, error))
        except Exception:
            connection.send((None, ExecutorError(f"rank {rank}: {traceback.format_exc()}")))


class RankProcesses:
    """Use as a context manager; the processes end with it."""

    def __init__(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_host, args=(theirs, rank, world_size), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.send(("exit", ()))
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()

    def send(self, name: str, *args: Any) -> None:
        for connection in self.connections:
            connection.send((name, args))

    def replies(self) -> list[Any]:
        """One value per rank. The first rank's error is raised after all have answered."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        values, errors = [], []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise ExecutorError(f"rank {rank} did not answer within {REPLY_TIMEOUT_S} s: {errors}")
            value, error = connection.recv()
            values.append(value)
            errors += [error] if error is not None else []
        if errors:
            raise errors[0]
        return values

    def call(self, name: str, *args: Any) -> list[Any]:
        self.send(name, *args)
        return self.replies()


class ProcessExecutor:
    """An `Executor` over RankProcesses. `shutdown` frees the model and leaves the processes."""

    max_in_flight = 1

    def __init__(self, config: EngineConfig, ranks: RankProcesses) -> None:
        self.config, self.ranks = config, ranks

    def start(self) -> ExecutorInfo:
        start, ranks = time.monotonic(), self.ranks
        ranks.call("make", self.config)
        ranks.call("load", "127.0.0.1", _free_port())
        num_blocks = min(ranks.call("cache_blocks"))
        ranks.call("init_cache", num_blocks)
        ranks.call("warm_up")
        return ExecutorInfo(
            ranks=tuple(ranks.call("info")),
            num_blocks=num_blocks,
            block_size=self.config.block_size,
            max_model_len=min(ranks.call("max_model_len")),
            vocab_size=min(ranks.call("vocab_size")),
            start_s=time.monotonic() - start,
        )

    def submit(self, plan: StepPlan) -> None:
        self.ranks.send("step", plan)

    def collect(self) -> StepResult:
        results = self.ranks.replies()
        assert all(result is None for result in results[1:]), "only the first rank samples"
        result: StepResult = results[0]
        return result

    def check(self) -> None:
        self.ranks.call("vocab_size")

    def shutdown(self) -> None:
        self.ranks.call("shutdown")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
