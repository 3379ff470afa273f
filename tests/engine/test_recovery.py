"""Ranks that die, hang or do not start: every stream ends, and the engine serves again or says that it cannot."""

from __future__ import annotations

import asyncio

import pytest

from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.engine.sequence import FinishReason, SamplingParams
from llm_ray.errors import ConfigError, EngineUnavailableError, ExecutorError, QueueFullError
from llm_ray.executor.fake import answer
from tests.support.async_engine import eventually, make_async_engine, read, read_all, running
from tests.support.engine import ends_of, seeded, tokens_of


async def test_dead_rank_ends_every_stream_with_an_error_and_the_next_request_is_answered():
    async with running() as (engine, executor):
        executor.hold()
        streams = engine.submit([1, 2], [SamplingParams(50)] * 16)
        executor.fail()
        for outputs in await read_all(streams):
            assert outputs[-1].reason is FinishReason.ERROR
            assert "rank 0 died" in outputs[-1].error
        assert engine.stats().num_used_blocks == engine.stats().num_running == 0, "gone with the ranks"
        await eventually(lambda: engine.status == "ready", "ready again")
        assert tokens_of(await read(engine.submit([1, 2], [SamplingParams(5)])[0])) == answer([1, 2], 5)
        assert engine.stats().num_rank_restarts == 1
        assert engine.stats().num_used_blocks == 0
        assert "rank 0 died" in engine.last_error


async def test_sequence_that_waited_for_its_first_step_fails_too_and_is_not_computed_after_the_restart():
    async with running() as (engine, executor):
        executor.keep_plans = True
        executor.hold()
        (first,) = engine.submit([1, 2], [SamplingParams(50)])
        await eventually(lambda: engine.stats().num_running == 1, "the first is in a step that is held")
        (second,) = engine.submit([3, 4], [SamplingParams(50)])
        executor.fail()
        assert {ends_of(outputs)[0].reason for outputs in await read_all([first, second])} == {FinishReason.ERROR}
        await eventually(lambda: engine.status == "ready", "ready again")
        (third,) = engine.submit([5, 6], [SamplingParams(5)])
        assert tokens_of(await read(third)) == answer([5, 6], 5)
        assert {seq_id for plan in executor.plans for seq_id in plan.seq_ids} == {third.seq_id}


async def test_failures_count_only_when_nothing_worked_in_between():
    async with running(max_restart_failures=2) as (engine, executor):
        for num_restarts in range(1, 6):
            executor.fail()
            await eventually(lambda n=num_restarts: engine.stats().num_rank_restarts == n, "a restart")
            assert tokens_of(await read(engine.submit([1], [SamplingParams(5)])[0])) == answer([1], 5)


async def test_hanging_rank_is_noticed_by_the_steps_deadline():
    async with running(step_timeout_s=0.05) as (engine, executor):
        executor.hold()
        (stream,) = engine.submit([1, 2], [SamplingParams(50)])
        outputs = await read(stream)
        assert "step_timeout_s" in outputs[-1].error
        executor.release()
        await eventually(lambda: engine.status == "ready", "ready again")
        assert tokens_of(await read(engine.submit([1], [SamplingParams(5)])[0])) == answer([1], 5)


async def test_idle_ranks_are_checked_and_a_dead_one_is_replaced_without_any_request():
    async with running() as (engine, executor):
        await eventually(lambda: executor.num_checks > 2, "heartbeats")
        executor.fail()
        await eventually(lambda: engine.stats().num_rank_restarts == 1, "a restart")
        assert executor.num_starts == 2
        assert tokens_of(await read(engine.submit([1], [SamplingParams(5)])[0])) == answer([1], 5)


async def test_requests_are_refused_while_the_ranks_are_rebuilt():
    async with running(restart_backoff_s=0.05, max_restart_failures=50) as (engine, executor):
        executor.fail(starts=2)
        await eventually(lambda: engine.status == "recovering", "recovering")
        with pytest.raises(EngineUnavailableError, match="recovering after: rank 0") as refusal:
            engine.submit([1], [SamplingParams(1)])
        assert refusal.value.retry_after_s > 0
        await eventually(lambda: engine.status == "ready", "ready after two failed starts")
        assert engine.stats().num_rank_restarts == 1


async def test_engine_that_cannot_restart_is_dead_and_says_so():
    async with running(max_restart_failures=3) as (engine, executor):
        (stream,) = engine.submit([1], [SamplingParams(100)])
        executor.fail(starts=100)
        assert ends_of(await read(stream))[0].reason is FinishReason.ERROR
        await eventually(lambda: engine.status == "dead", "dead")
        assert not engine.healthy
        assert executor.num_starts == 1
        with pytest.raises(EngineUnavailableError, match="dead"):
            engine.submit([1], [SamplingParams(1)])


def test_first_start_that_fails_raises_the_executors_own_error():
    engine, executor = make_async_engine()
    executor.fail(starts=1)
    with pytest.raises(ExecutorError, match="did not start"):
        engine.start()
    assert engine.status == "dead"
    engine.shutdown(0.0)


def test_impossible_configuration_is_raised_by_start(monkeypatch):
    engine, executor = make_async_engine()

    def refuse():
        raise ConfigError("no")

    monkeypatch.setattr(executor, "start", refuse)
    with pytest.raises(ConfigError, match="no"):
        engine.start()


async def test_shutdown_during_recovery_does_not_wait_for_the_ranks():
    async with running(restart_backoff_s=1000.0, max_restart_failures=50) as (engine, executor):
        executor.fail(starts=100)
        await eventually(lambda: engine.status == "recovering", "recovering")
        await asyncio.to_thread(engine.shutdown, 1000.0)
        assert engine.status == "stopped"


async def test_bug_in_a_plan_is_survived_like_a_dead_rank(monkeypatch):
    async with running() as (engine, executor):
        monkeypatch.setattr(executor, "submit", lambda plan: 1 / 0)
        (stream,) = engine.submit([1], [SamplingParams(1)])
        assert (await read(stream))[-1].error == "division by zero"
        monkeypatch.undo()
        await eventually(lambda: engine.status == "ready", "ready again")
        assert tokens_of(await read(engine.submit([1], [SamplingParams(5)])[0])) == answer([1], 5)


async def client(engine: AsyncEngine, number: int, arrival_s: float) -> FinishReason:
    """Until accepted: submit. Then read to the end; a whole answer must be the right one."""
    await asyncio.sleep(arrival_s)
    prompt = [number % 7, number % 5, number % 3]
    while True:
        try:
            (stream,) = engine.submit(prompt, [SamplingParams(12)])
        except (EngineUnavailableError, QueueFullError):
            await asyncio.sleep(0.005)
            continue
        outputs = await read(stream)
        assert tokens_of(outputs) == answer(prompt, 12)[: len(tokens_of(outputs))]
        return ends_of(outputs)[0].reason


@pytest.mark.parametrize("max_in_flight", [1, 2])
async def test_ranks_that_die_again_and_again_under_load_lose_no_request(max_in_flight):
    seed, rng = seeded()
    async with running(max_in_flight=max_in_flight, max_restart_failures=100) as (engine, executor):
        executor.step_s = 0.001
        clients = [asyncio.create_task(client(engine, number, rng.random() * 0.5)) for number in range(200)]
        for _ in range(8):
            await asyncio.sleep(0.03 + rng.random() * 0.04)
            executor.fail(starts=rng.randrange(2))
        reasons = await asyncio.gather(*clients)
        repeat = f"repeat with LLM_RAY_TEST_SEED={seed}"
        assert FinishReason.ERROR in reasons, repeat
        assert set(reasons) <= {FinishReason.ERROR, FinishReason.LENGTH}, repeat
        # The first may run into the last death, if nobody has noticed that one yet.
        later = [await client(engine, number, 0.0) for number in range(3)]
        assert later[1:] == [FinishReason.LENGTH] * 2, repeat
        assert engine.num_open == 0, repeat
        assert engine.stats().num_rank_restarts > 0, repeat
        assert engine.stats().num_used_blocks == 0, repeat
