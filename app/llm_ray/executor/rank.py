"""The rank's side of the Ray executor: obeys the driver's messages one by one until told to stop or left alone.

Knows nothing of Ray and nothing of tensors; the worker is made only after the environment is set.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llm_ray.config import EngineConfig
from llm_ray.engine.step import RankInfo, StepPlan, StepResult
from llm_ray.errors import ConfigError
from llm_ray.executor.channel import Address, ChannelClosed, Link

ORPHAN_GRACE_S = 5.0


class RankWorker(Protocol):
    """What a rank must be able to do; `llm_ray.worker.worker.Worker` is the real one."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    def load(self, master_addr: str, master_port: int) -> RankInfo: ...
    def info(self) -> RankInfo: ...
    def cache_blocks(self) -> int: ...
    def init_cache(self, num_blocks: int) -> None: ...
    def warm_up(self) -> None: ...
    def step(self, plan: StepPlan) -> StepResult | None: ...
    def shutdown(self) -> None: ...


MakeWorker = Callable[[EngineConfig, int], RankWorker]


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's first message. free_port: where rank 0 can open the group's rendezvous."""

    pid: int
    node_id: str
    node_ip: str
    free_port: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call the worker's method; answered by a Reply. An attribute is read by a Call without arguments."""

    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    value: Any


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by a Reply of None; a rank in a step answers when the step is over."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave in good order."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The rank raised and has stopped. config_error is set when no restart can help."""

    text: str
    config_error: ConfigError | None = None


def make_worker(config: EngineConfig, rank: int) -> RankWorker:
    """The real worker; imports torch and deepspeed, so the environment must be complete by now."""
    from llm_ray.worker.parallel import Rank
    from llm_ray.worker.worker import Worker

    place = Rank.of(rank, config.pipeline_parallel_size, config.tensor_parallel_size)
    worker: RankWorker = Worker(config, place)
    return worker


def run_rank(
    address: Address, authkey: bytes, rank: int, node: tuple[str, str], config: EngineConfig, make: MakeWorker
) -> None:
    """Connect to the driver and serve it. Returns on Stop, on any error and when the driver is gone. node: id, IP."""
    link = Link.connect(address, authkey, rank)
    link.on_close(_exit_soon)
    worker: RankWorker | None = None
    try:
        link.send(Hello(os.getpid(), node[0], node[1], _free_port(node[1])))
        worker = make(config, rank)
        while not isinstance(message := link.receive(), Stop):
            answer = _obey(worker, message)
            if answer is not None:
                link.send(answer)
    except ChannelClosed:
        pass
    except Exception as error:
        _report(link, error)
    finally:
        if worker is not None:
            worker.shutdown()
        link.close()


def _exit_soon() -> None:
    """A collective that never returns must not keep an orphan alive."""
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


def _obey(worker: RankWorker, message: object) -> StepResult | Reply | None:
    match message:
        case StepPlan():
            return worker.step(message)
        case Ping():
            return Reply(None)
        case Call(name, args):
            value = getattr(worker, name)
            return Reply(value(*args) if callable(value) else value)
    raise TypeError(f"unknown message {message!r}")


def _report(link: Link, error: Exception) -> None:
    config_error = error if isinstance(error, ConfigError) else None
    with contextlib.suppress(ChannelClosed):
        link.send(Failure("".join(traceback.format_exception(error)), config_error))


def _free_port(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])
