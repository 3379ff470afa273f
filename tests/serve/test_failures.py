"""Ranks that die or hang, more requests than fit, and the end: against an app with tight limits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.serve.running_app import RunningApp, wait_for
from tests.serve.sse import Outcome, opened, stream

pytestmark = pytest.mark.serve

RECOVERY_S = 120
NUM_STREAMS = 16


async def test_overload_gives_only_answers_and_refusals(tight_app: RunningApp) -> None:
    num_requests = 100
    async with opened(tight_app.url) as http:
        outcomes = await asyncio.gather(*(stream(http, f"Number {i} is", 4) for i in range(num_requests)))
    served = [outcome for outcome in outcomes if outcome.status == 200]
    refused = [outcome for outcome in outcomes if outcome.status == 429]
    assert len(served) + len(refused) == num_requests
    assert len(served) >= 24  # 16 running and 8 waiting
    assert refused
    assert all(outcome.has_ended and outcome.error is None for outcome in served)
    assert all(int(outcome.retry_after or 0) >= 1 for outcome in refused)


async def test_streams_end_with_an_event_when_a_rank_is_killed(tight_app: RunningApp) -> None:
    await break_a_rank(tight_app, lambda pid: os.kill(pid, signal.SIGKILL))


async def test_streams_end_with_an_event_when_a_rank_hangs(tight_app: RunningApp) -> None:
    await break_a_rank(tight_app, lambda pid: os.kill(pid, signal.SIGSTOP))


async def break_a_rank(app: RunningApp, breaks: Callable[[int], None]) -> None:
    """Break the last rank while 16 streams run; then the next request must be answered by new ranks."""
    pids = await asyncio.to_thread(app.rank_pids)
    num_steps = (await asyncio.to_thread(app.stats))["num_steps"]
    async with opened(app.url) as http:
        streams = [asyncio.create_task(stream(http, f"Chapter {i}", 400)) for i in range(NUM_STREAMS)]
        await asyncio.to_thread(wait_for, lambda: is_at_work(app, num_steps), 60, "16 running streams")
        breaks(pids[-1])
        outcomes: list[Outcome] = await asyncio.wait_for(asyncio.gather(*streams), RECOVERY_S)
        assert [outcome for outcome in outcomes if not outcome.has_ended] == []
        assert all(outcome.error or outcome.status == 503 for outcome in outcomes)
        await asyncio.to_thread(wait_for, app.is_ready, RECOVERY_S, "recovery")
        after = await stream(http, "The sea is", 4)
    assert after.has_ended
    assert after.error is None
    new_pids = await asyncio.to_thread(app.rank_pids)
    assert set(new_pids).isdisjoint(pids)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def is_at_work(app: RunningApp, num_steps: int) -> bool:
    stats = app.stats()
    return stats["num_running"] == NUM_STREAMS and stats["num_steps"] > num_steps + 3


async def test_an_idle_rank_that_dies_is_replaced_before_anyone_asks(tight_app: RunningApp) -> None:
    pids = await asyncio.to_thread(tight_app.rank_pids)
    os.kill(pids[0], signal.SIGKILL)
    await asyncio.to_thread(wait_for, lambda: not tight_app.is_ready(), 10, "the notice of the death")
    await asyncio.to_thread(wait_for, tight_app.is_ready, RECOVERY_S, "recovery")


def test_sigterm_leaves_no_process_and_no_file_behind(tight_app: RunningApp) -> None:
    processes = tight_app.descendants()
    home = temp_dir_of(processes)
    assert len(processes) > 5
    assert home.is_dir()
    assert tight_app.stop() == 0
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert not home.exists()


def temp_dir_of(processes: list[psutil.Process]) -> Path:
    """Ray's session lives in our own temporary directory, which the raylet's command line names."""
    raylet = next(process for process in processes if process.name() == "raylet")
    socket = next(arg for arg in raylet.cmdline() if arg.startswith("--raylet_socket_name="))
    return Path(socket.partition("=")[2]).parents[2]
