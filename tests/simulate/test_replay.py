"""A trace as a load on the real front over a fake executor, and the rates that are measured on it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import rates as bench_rates
from bench.rates import Measured, rates_of
from bench.replay import connect, replay, summarize

from llm_ray.simulate.shape import shape_trace
from llm_ray.simulate.trace import make_trace
from llm_ray.tokenizer import Tokenizer
from tests.app.front import Front, serving

STEP_S = 0.02


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Front]:
    with serving(Tokenizer(str(smollm2)), step_s=STEP_S, engine={"max_num_seqs": 4}, max_queue_len=2) as made:
        yield made


def run(url: str, trace, model: str = ""):
    async def go():
        target = await connect(url, model, 60)
        async with target.client:
            return await replay(target, trace)

    return asyncio.run(go())


def test_a_replay_asks_for_the_traces_lengths_at_its_times(server):
    records = run(server.url, make_trace([(0.0, 20, 5), (0.5, 3, 1), (0.2, 7, 12)]))
    assert [record.status for record in records] == ["ok"] * 3
    assert [record.tokens for record in records] == [5, 12, 1]
    assert [record.arrival_s for record in records] == [0.0, 0.2, 0.5]
    assert all(record.sent_s >= record.arrival_s for record in records)
    assert all(0 < record.ttft_s <= record.latency_s for record in records)
    assert records[1].latency_s >= 11 * STEP_S


def test_a_refusal_is_a_record_with_its_code_and_the_load_goes_on(server):
    # 4 run and 2 wait; the next ones of the burst get 429, and the last request comes when there is room again.
    records = run(server.url, make_trace([*[(0.0, 4, 40)] * 12, (3.0, 4, 2)]))
    statuses = [record.status for record in records]
    assert {"ok", "429"} == set(statuses)
    assert statuses[-1] == "ok"
    assert all(math.isnan(record.latency_s) for record in records if record.status == "429")
    summary = summarize(records)
    assert summary["requests"] == sum(summary["statuses"].values()) == 13
    assert summary["ttft_s"]["p99"] > 0


def test_an_unknown_model_and_a_service_that_is_not_there_are_records_too(server):
    assert [record.status for record in run(server.url, shape_trace("0.1:10", 1, 1), "nobody")] == ["404"]
    assert [record.status for record in run("http://127.0.0.1:9", shape_trace("0.1:10", 1, 1), "x")] == [
        "APIConnectionError"
    ]


def test_what_is_measured_is_at_least_what_the_engine_takes(server):
    async def go() -> Measured:
        target = await connect(server.url, "", 60)
        async with target.client:
            return await bench_rates.measure(target, batch=4, prompt=300, tokens=30, rounds=1)

    measured = asyncio.run(go())
    assert measured.alone_s > STEP_S * 0.9
    # A chunk of 64 tokens is a step: five for the prompt. A busy machine makes it more, never less.
    assert measured.long_ttft_s > 5 * STEP_S * 0.9


def test_rates_are_the_line_through_the_two_step_times():
    rates = rates_of(Measured(0.022, 0.036, 8, 0.05, 0.55, 1001))
    assert rates == pytest.approx(
        {"decode_step_s": 0.02, "decode_seq_s": 0.002, "prefill_tokens_per_s": 1001 / 0.52, "overhead_s": 0.03}
    )
