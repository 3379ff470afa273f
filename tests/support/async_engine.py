"""A running AsyncEngine over the fake executor, readers for its streams, and waiting with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.engine.outputs import FinishOutput, Output
from llm_ray.engine.stream import SequenceStream
from llm_ray.executor.fake import FakeExecutor
from tests.support.engine import ends_of, make_config

DEADLINE_S = 30.0


def make_async_engine(
    *,
    max_queue_len: int = 100,
    max_in_flight: int = 1,
    max_restart_failures: int = 3,
    restart_backoff_s: float = 0.01,
    **settings: Any,
) -> tuple[AsyncEngine, FakeExecutor]:
    config = make_config(**settings)
    executor = FakeExecutor(config, max_in_flight=max_in_flight)
    engine = AsyncEngine(
        config,
        executor,
        max_queue_len=max_queue_len,
        max_restart_failures=max_restart_failures,
        restart_backoff_s=restart_backoff_s,
    )
    return engine, executor


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[AsyncEngine, FakeExecutor]]:
    engine, executor = make_async_engine(**settings)
    await asyncio.to_thread(engine.start)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield engine, executor
    finally:
        executor.release()
        await asyncio.to_thread(engine.shutdown, 0.0)


async def read(stream: SequenceStream) -> list[Output]:
    """Everything up to the end, which must come once and last."""
    outputs = [output async for output in stream]
    assert len(ends_of(outputs)) == 1
    assert isinstance(outputs[-1], FinishOutput)
    assert await stream.next_batch() == []
    return outputs


async def read_all(streams: list[SequenceStream]) -> list[list[Output]]:
    return list(await asyncio.gather(*map(read, streams)))


async def eventually(is_true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not is_true():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S} s: {what}") from None
