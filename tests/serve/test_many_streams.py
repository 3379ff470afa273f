"""Load on the running app: nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.serve.running_app import RunningApp, wait_for
from tests.serve.sse import opened, stream

pytestmark = pytest.mark.serve

NUM_STREAMS = 200
SHARE_LEAVING = 0.2
SEED = 20


async def test_200_streams_with_disconnects_leave_nothing_behind(app: RunningApp) -> None:
    rng = random.Random(SEED)
    leaving = set(rng.sample(range(NUM_STREAMS), int(NUM_STREAMS * SHARE_LEAVING)))
    baseline = await asyncio.to_thread(app.stats)
    async with opened(app.url) as http:
        outcomes = await asyncio.gather(
            *(
                stream(http, f"Story {i}: once upon a time", 10, rng.randint(0, 8) if i in leaving else None)
                for i in range(NUM_STREAMS)
            )
        )
    stayed = [outcome for i, outcome in enumerate(outcomes) if i not in leaving]
    assert [outcome for outcome in stayed if outcome.events[-1:] != ["[DONE]"] or outcome.error] == []
    await asyncio.to_thread(wait_for, lambda: is_idle(app, baseline["num_tasks"]), 30, f"an idle engine (seed {SEED})")


def is_idle(app: RunningApp, num_tasks: int) -> bool:
    stats = app.stats()
    busy = ("num_used_blocks", "num_running", "num_waiting")
    return all(stats[name] == 0 for name in busy) and stats["num_tasks"] <= num_tasks


async def test_a_short_request_is_answered_during_a_long_prefill(app: RunningApp) -> None:
    async with opened(app.url) as http:
        alone = await first_token_s(http, "The sky is")
        long = asyncio.create_task(stream(http, "sea " * 900, 1))
        await asyncio.to_thread(wait_for, lambda: app.stats()["num_running"] == 1, 30, "the long request", 0.01)
        beside = await first_token_s(http, "The sun is")
        was_running = not long.done()
        outcome = await long
    print(f"time to first token: alone {alone * 1000:.0f} ms, beside a prefill {beside * 1000:.0f} ms")
    assert was_running
    assert outcome.has_ended


async def first_token_s(http: object, prompt: str) -> float:
    began = time.monotonic()
    outcome = await stream(http, prompt, 1)  # type: ignore[arg-type]
    assert outcome.has_ended
    return time.monotonic() - began
