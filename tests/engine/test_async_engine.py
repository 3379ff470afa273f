"""The asyncio front: streams, bounds, disconnects and shutdown, against a real engine thread."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.engine.outputs import FinishOutput, TokenOutput
from llm_ray.engine.sequence import FinishReason, SamplingParams
from llm_ray.engine.stream import SequenceStream
from llm_ray.errors import EngineUnavailableError, InvalidRequestError, QueueFullError
from llm_ray.executor.fake import answer
from tests.support.async_engine import eventually, make_async_engine, read, read_all, running
from tests.support.engine import ends_of, seeded, tokens_of

ABORTED = FinishOutput(FinishReason.ABORT)


async def test_stream_yields_the_answer_and_then_its_one_end():
    async with running() as (engine, _):
        (stream,) = engine.submit([1, 2, 3], [SamplingParams(6)])
        outputs = await read(stream)
    assert tokens_of(outputs) == answer([1, 2, 3], 6)
    assert outputs[-1] == FinishOutput(FinishReason.LENGTH)


async def test_concurrent_streams_each_get_their_own_answer():
    async with running() as (engine, _):
        prompts = [[i, i + 1, i * 2] for i in range(40)]
        streams = [engine.submit(prompt, [SamplingParams(10)])[0] for prompt in prompts]
        assert [tokens_of(outputs) for outputs in await read_all(streams)] == [answer(p, 10) for p in prompts]
        assert engine.num_open == 0
        assert engine.stats().num_used_blocks == 0


async def test_choices_share_the_prompt_and_report_cached_tokens():
    async with running() as (engine, _):
        streams = engine.submit(list(range(9)), [SamplingParams(3, seed=seed) for seed in range(3)])
        outputs = await read_all(streams)
    assert [tokens_of(one) for one in outputs] == [answer(range(9), 3, seed=seed) for seed in range(3)]
    assert sorted(stream.num_cached_tokens for stream in streams) == [0, 8, 8]


async def test_next_batch_takes_everything_that_is_there():
    async with running() as (engine, _):
        (stream,) = engine.submit([1], [SamplingParams(5)])
        await eventually(lambda: engine.num_open == 0, "the sequence ends unread")
        await asyncio.sleep(0)
        batch = await stream.next_batch()
    assert len(batch) == 6
    assert tokens_of(batch) == answer([1], 5)


async def test_each_step_wakes_the_loop_once_whatever_the_number_of_streams(monkeypatch):
    loop, calls = asyncio.get_running_loop(), []
    real = loop.call_soon_threadsafe

    def counted(callback, *args, context=None):
        if threading.current_thread().name == "engine":
            calls.append(callback)
        return real(callback, *args, context=context)

    async with running() as (engine, _):
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await read_all(engine.submit([1, 2], [SamplingParams(10)] * 8))
        assert 10 <= len(calls) <= engine.stats().num_steps


async def test_loop_that_closed_before_its_answer_harms_nobody():
    async with running() as (engine, executor):
        executor.hold()

        async def leave() -> None:
            engine.submit([1, 2], [SamplingParams(3)])

        await asyncio.to_thread(asyncio.run, leave())
        (stream,) = engine.submit([3, 4], [SamplingParams(3)])
        executor.release()
        assert tokens_of(await read(stream)) == answer([3, 4], 3)
        assert engine.stats().num_rank_restarts == 0


async def test_open_sequences_are_bounded_exactly_and_choices_are_accepted_all_or_none():
    async with running(max_num_seqs=2, max_queue_len=3) as (engine, executor):
        executor.hold()
        streams = engine.submit([1], [SamplingParams(2)] * 4)
        with pytest.raises(QueueFullError, match="4 sequences are open and 2 more exceed") as refusal:
            engine.submit([1], [SamplingParams(2)] * 2)
        assert refusal.value.retry_after_s > 0
        assert engine.num_open == 4
        streams += engine.submit([1], [SamplingParams(2)])
        with pytest.raises(QueueFullError):
            engine.submit([1], [SamplingParams(2)])
        executor.release()
        assert len(await read_all(streams)) == 5
        assert len(await read_all(engine.submit([1], [SamplingParams(2)] * 5))) == 5


async def test_impossible_request_is_refused_and_takes_no_place():
    async with running() as (engine, _):
        with pytest.raises(InvalidRequestError):
            engine.submit([], [SamplingParams(1)])
        with pytest.raises(InvalidRequestError, match="max_model_len"):
            engine.submit([1] * 125, [SamplingParams(1)])
        assert engine.num_open == 0


async def test_disconnect_frees_the_blocks_in_the_next_step_and_ends_the_stream_once():
    async with running() as (engine, executor):
        executor.keep_plans = True
        executor.hold()
        (gone,), (stays,) = (engine.submit(prompt, [SamplingParams(100)]) for prompt in ([1] * 8, [2]))
        await eventually(lambda: engine.stats().num_running == 2, "both are in a step that is held")
        gone.abort()
        gone.abort()
        executor.release()
        outputs = await read(gone)
        assert outputs[-1] == ABORTED
        assert len(outputs) <= 2, "at most the token of the step that was held"
        assert tokens_of(await read(stays)) == answer([2], 100)
        rows = [gone.seq_id in plan.seq_ids for plan in executor.plans]
        assert rows.index(False) == sum(rows), "never in a step again"
        assert engine.stats().num_used_blocks == 0
        gone.abort()


async def test_abort_before_the_first_step_and_after_the_last_is_harmless():
    async with running() as (engine, _):
        early, late = engine.submit([1], [SamplingParams(3)] * 2)
        early.abort()
        assert ends_of(await read(early))[0].reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert (await read(late))[-1] == FinishOutput(FinishReason.LENGTH)
        late.abort()
        assert await late.next_batch() == []


async def test_reader_that_is_cancelled_while_waiting_loses_nothing():
    async with running() as (engine, executor):
        executor.hold()
        (stream,) = engine.submit([1], [SamplingParams(3)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.next_batch(), 0.01)
        executor.release()
        assert tokens_of(await read(stream)) == answer([1], 3)


async def visit(engine: AsyncEngine, rng: random.Random) -> list[SequenceStream]:
    """Submit, read a while, perhaps leave early; whoever leaves aborts."""
    prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
    try:
        streams = engine.submit(prompt, [SamplingParams(rng.randrange(1, 12)) for _ in range(rng.randrange(1, 3))])
    except QueueFullError:
        return []
    for stream in streams:
        for _ in range(rng.randrange(4)):
            if not isinstance(await stream.next_batch(), list):
                break
        if rng.random() < 0.5:
            stream.abort()
    return streams


@pytest.mark.parametrize("max_in_flight", [1, 3])
async def test_thousands_of_random_visits_leave_nothing_behind(max_in_flight):
    seed, rng = seeded()
    repeat = f"repeat with LLM_RAY_TEST_SEED={seed}"
    async with running(max_in_flight=max_in_flight, num_blocks=16, max_queue_len=60) as (engine, _):
        accepted: list[SequenceStream] = []
        for _ in range(60):
            for streams in await asyncio.gather(*(visit(engine, rng) for _ in range(50))):
                accepted += streams
        for stream in accepted:
            batch = await stream.next_batch()
            while batch and not ends_of(batch):
                batch = await stream.next_batch()
            assert await stream.next_batch() == [], repeat
        await eventually(lambda: engine.stats().num_used_blocks == 0, f"no block in use, {repeat}")
        assert engine.num_open == 0, repeat
        assert engine.stats().num_running == engine.stats().num_waiting == 0, repeat
        assert engine.stats().num_preemptions > 0, repeat
        assert engine.stats().num_rank_restarts == 0, engine.last_error
        assert len(accepted) > 1000, repeat


async def test_shutdown_drains_what_is_open_and_refuses_what_is_new():
    async with running() as (engine, executor):
        executor.hold()
        (stream,) = engine.submit([1], [SamplingParams(20)])
        stopping = asyncio.create_task(asyncio.to_thread(engine.shutdown, 20.0))
        await eventually(lambda: engine.status == "draining", "draining")
        with pytest.raises(EngineUnavailableError, match="draining"):
            engine.submit([1], [SamplingParams(1)])
        executor.release()
        assert tokens_of(await read(stream)) == answer([1], 20)
        await stopping
        assert engine.status == "stopped"
        assert not engine.healthy
        with pytest.raises(EngineUnavailableError, match="stopped"):
            engine.submit([1], [SamplingParams(1)])


async def test_shutdown_aborts_what_is_not_done_at_the_deadline():
    async with running() as (engine, executor):
        executor.step_s = 0.005
        streams = engine.submit([1], [SamplingParams(100)] * 20)
        assert isinstance(await anext(streams[0]), TokenOutput)
        await asyncio.to_thread(engine.shutdown, 0.02)
        assert {outputs[-1].reason for outputs in await read_all(streams)} == {FinishReason.ABORT}


async def test_shutdown_is_idempotent_and_possible_before_start():
    engine, _ = make_async_engine()
    engine.shutdown(1.0)
    engine.shutdown(1.0)
    assert engine.status == "stopped"
    async with running() as (started, _):
        await asyncio.to_thread(started.shutdown, 0.0)
        await asyncio.to_thread(started.shutdown, 0.0)
        assert started.status == "stopped"
