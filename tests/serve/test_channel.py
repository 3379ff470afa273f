"""The control channel and the rank's loop, between two processes and without Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Client
from typing import Any

import pytest

from llm_ray.config import EngineConfig
from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence, SampledToken, StepPlan, StepResult, TokenLogprob
from llm_ray.errors import ConfigError
from llm_ray.executor.channel import ChannelClosed, ChannelTimeout, Hub, Link
from llm_ray.executor.rank import Call, Failure, Hello, Ping, Reply, Stop, run_rank

CONFIG = EngineConfig(model="none")
STUCK, FAILING = 666, 667


class Echo:
    """A rank without a model: answers each plan with its own sequences; two step ids do worse."""

    max_model_len = 7

    def __init__(self, config: EngineConfig, rank: int) -> None:
        if rank == 9:
            raise ConfigError("no such place")

    def step(self, plan: StepPlan) -> StepResult:
        if plan.step_id == STUCK:
            time.sleep(600)
        if plan.step_id == FAILING:
            raise ValueError("bad weights")
        return StepResult(plan.step_id, [SampledToken(s, 1, -0.5, (TokenLogprob(1, -0.5),)) for s in plan.seq_ids])

    def shutdown(self) -> None:
        pass


def plan(step_id: int) -> StepPlan:
    new = [NewSequence(4, [1, 2], 2, SamplingParams(max_tokens=3, stop_token_ids=frozenset({5})))]
    one = array("q", [1])
    return StepPlan(step_id, [4], one, one, one, array("q", [0, 1]), one, [[3]], [True], new, [2])


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub("127.0.0.1", 2, stall_timeout_s=5)
    yield made
    made.close()


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Processes of a test; none outlives it."""
    processes: list[Any] = []
    yield processes
    for process in processes:
        process.kill()
        process.join()


def start(hub: Hub, started: list[Any], rank: int) -> Any:
    context = multiprocessing.get_context("spawn")
    process = context.Process(
        target=run_rank, args=(hub.address, hub.authkey, rank, ("node", "127.0.0.1"), CONFIG, Echo)
    )
    process.start()
    started.append(process)
    deadline = time.monotonic() + 60
    while hub.accept(0.5) != rank:
        assert time.monotonic() < deadline, "the rank did not connect"
    assert isinstance(next_message(hub), Hello)
    return process


def next_message(hub: Hub, timeout_s: float = 30) -> Any:
    return hub.receive(time.monotonic() + timeout_s)[1]


def test_steps_and_calls_are_answered_in_order(hub: Hub, started: list[Any]) -> None:
    process = start(hub, started, 0)
    hub.broadcast(plan(1))
    hub.broadcast(Call("max_model_len"))
    hub.broadcast(Ping())
    assert next_message(hub) == StepResult(1, [SampledToken(4, 1, -0.5, (TokenLogprob(1, -0.5),))])
    assert [next_message(hub), next_message(hub)] == [Reply(7), Reply(None)]
    hub.broadcast(Stop())
    process.join(30)
    assert process.exitcode == 0


def test_what_a_rank_raises_arrives_with_its_traceback(hub: Hub, started: list[Any]) -> None:
    start(hub, started, 0)
    hub.broadcast(plan(FAILING))
    failure = next_message(hub)
    assert isinstance(failure, Failure)
    assert failure.text.splitlines()[-1] == "ValueError: bad weights"
    assert "in step" in failure.text
    assert failure.config_error is None


def test_a_setting_that_can_never_work_is_told_apart(hub: Hub, started: list[Any]) -> None:
    start(hub, started, 9)
    assert str(next_message(hub).config_error) == "no such place"


def test_a_killed_rank_is_noticed_at_once(hub: Hub, started: list[Any]) -> None:
    process = start(hub, started, 1)
    with pytest.raises(ChannelTimeout):
        next_message(hub, 0.1)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ChannelClosed) as closed:
        next_message(hub, 30)
    assert closed.value.rank == 1


def test_a_rank_stuck_in_a_step_ends_when_its_driver_is_gone(hub: Hub, started: list[Any]) -> None:
    process = start(hub, started, 0)
    hub.broadcast(plan(STUCK))
    hub.close()
    process.join(60)
    assert process.exitcode == 1


def test_strangers_are_turned_away(hub: Hub) -> None:
    silent = socket.create_connection(hub.address)
    silent.close()
    assert hub.accept(5) is None

    def intrude() -> None:
        with pytest.raises((multiprocessing.AuthenticationError, EOFError, OSError)):
            Client(hub.address, authkey=b"guess")

    stranger = threading.Thread(target=intrude)
    stranger.start()
    assert hub.accept(5) is None
    stranger.join(30)
    assert hub.ranks == []
    friend = threading.Thread(target=lambda: Link.connect(hub.address, hub.authkey, 3))
    friend.start()
    assert hub.accept(5) == 3
    friend.join(30)


def test_a_stopped_rank_cannot_block_the_driver(started: list[Any]) -> None:
    hub = Hub("127.0.0.1", 1, stall_timeout_s=0.5)
    process = start(hub, started, 0)
    os.kill(process.pid, signal.SIGSTOP)
    more_than_the_kernel_buffers = b"x" * (64 << 20)
    with pytest.raises(ChannelClosed):
        hub.broadcast(more_than_the_kernel_buffers)
    hub.close()
