"""One engine, against what can be worked out by hand and by queueing theory."""

from __future__ import annotations

import math
import random

import pytest

from llm_ray.errors import ConfigError
from llm_ray.simulate.scalers import FixedScaler
from llm_ray.simulate.settings import Fleet, Rates
from llm_ray.simulate.simulator import Result, simulate
from llm_ray.simulate.trace import make_trace

ALONE = Fleet()


def run(requests: list[tuple[float, int, int]], **rates: float) -> Result:
    return simulate(make_trace(requests), Rates(**rates), ALONE, FixedScaler())


def test_a_single_request_takes_its_prompt_and_its_steps():
    result = run([(5.0, 1000, 11)], decode_step_s=0.02, decode_seq_s=0.005, prefill_tokens_per_s=2000, overhead_s=0.1)
    assert result.ttft[0] == pytest.approx(0.6)
    assert result.latency[0] == pytest.approx(0.6 + 10 * 0.025)


def test_one_token_ends_with_the_prompt():
    result = run([(0.0, 100, 1), (0.0, 100, 0)])
    assert list(result.ttft) == list(result.latency)


def test_two_sequences_slow_each_other_by_what_one_adds_to_a_step():
    both = run([(0.0, 0, 101), (0.0, 0, 101)], decode_step_s=0.02, decode_seq_s=0.005)
    assert list(both.latency) == pytest.approx([100 * 0.03] * 2)
    # The second comes when the first has 50 tokens left: these go at 0.03, and then it is alone again.
    late = run([(0.0, 0, 101), (50 * 0.025, 0, 101)], decode_step_s=0.02, decode_seq_s=0.005)
    assert late.latency[0] == pytest.approx(50 * 0.025 + 50 * 0.03)
    assert late.latency[1] == pytest.approx(50 * 0.03 + 50 * 0.025)


def test_a_prompt_slows_the_steps_of_those_that_decode():
    # Chunks of 50 tokens cost 0.1 s a step, of which 0.02 is the step's own: 10 steps of 0.02 + 0.005 + 0.08.
    rates = {"decode_step_s": 0.02, "decode_seq_s": 0.005, "prefill_tokens_per_s": 500, "prefill_chunk_tokens": 50}
    result = run([(0.0, 0, 1001), (1.0, 500, 1)], **rates)
    assert result.ttft[1] == pytest.approx(10 * 0.105)
    assert result.latency[0] == pytest.approx(1.0 + 1.05 + (1000 - 40 - 10) * 0.025)


def test_prompts_beyond_the_ones_of_a_step_wait():
    rates = {"decode_step_s": 0.0, "decode_seq_s": 0.001, "prefill_tokens_per_s": 1000, "prefill_chunk_tokens": 100}
    one_by_one = run([(0.0, 1000, 1)] * 3, prefill_sequences=1, **rates)
    assert sorted(one_by_one.ttft) == pytest.approx([1.0, 2.0, 3.0])
    together = run([(0.0, 1000, 1)] * 3, prefill_sequences=3, **rates)
    assert list(together.ttft) == pytest.approx([3.0] * 3)


def test_more_than_the_slots_wait_and_more_than_the_queue_are_rejected():
    rates = {"decode_step_s": 0.01, "decode_seq_s": 0.0, "max_num_seqs": 2, "max_queue_len": 1}
    result = run([(0.0, 0, 101)] * 4, **rates)
    assert (result.rejected, result.peak_waiting) == (1, 1)
    assert sorted(result.latency[:3]) == pytest.approx([1.0, 1.0, 2.0])
    assert math.isnan(result.latency[3])


def poisson(rng: random.Random, rate: float, mean_tokens: float, count: int) -> list[tuple[float, int, int]]:
    t, requests = 0.0, []
    for _ in range(count):
        t += rng.expovariate(rate)
        requests.append((t, 0, 1 + round(rng.expovariate(1 / mean_tokens))))
    return requests


def erlang_c(servers: int, load: float) -> float:
    """The share of arrivals that wait in M/M/c."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 3.0), (8, 6.8)])
def test_slots_that_do_not_slow_each_other_are_the_m_m_c_queue(servers, load):
    mean_s = 1.0
    requests = poisson(random.Random(3), load / mean_s, 1000, 60_000)
    result = run(requests, decode_step_s=0.001, decode_seq_s=0.0, max_num_seqs=servers, max_queue_len=10**9,
                 prefill_tokens_per_s=1000, prefill_chunk_tokens=64, prefill_sequences=64)  # fmt: skip
    expected = mean_s + erlang_c(servers, load) * mean_s / (servers - load)
    assert sum(result.latency) / len(result.latency) == pytest.approx(expected, rel=0.06)


def test_an_engine_without_a_fixed_part_is_the_processor_sharing_queue():
    requests = poisson(random.Random(4), 0.7, 1000, 60_000)
    work = [(output - 1) * 0.001 for _, _, output in requests]
    load, mean_s = sum(work) / requests[-1][0], sum(work) / len(work)
    result = run(requests, decode_step_s=0.0, decode_seq_s=0.001, max_num_seqs=10**6)
    assert sum(result.latency) / len(result.latency) == pytest.approx(mean_s / (1 - load), rel=0.06)


def test_tiny_work_late_in_a_long_trace_still_ends():
    # What floating point leaves of a token is more than it can add to a clock of years.
    start = 1e9
    rates = {"decode_step_s": 1e-6, "decode_seq_s": 1e-7, "prefill_tokens_per_s": 1e6, "prefill_chunk_tokens": 512}
    result = run([(start + i / 7, 1000 + i, 1 + i % 50) for i in range(500)], **rates)
    assert not any(math.isnan(t) for t in result.latency)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({"decode_step_s": -1.0}, ["decode_step_s (-1.0)", "at least 0"]),
        ({"decode_step_s": math.nan}, ["decode_step_s (nan)"]),
        ({"decode_step_s": 0.0, "decode_seq_s": 0.0}, ["decode_step_s and decode_seq_s", "set one"]),
        ({"max_num_seqs": 0}, ["max_num_seqs (0)", "at least 1"]),
        ({"prefill_tokens_per_s": 0.0}, ["prefill_tokens_per_s (0.0)", "above 0"]),
        ({"prefill_tokens_per_s": 4000.0}, ["prefill_tokens_per_s (4000)", "at most", "3200", "raise prefill_chunk"]),
        ({"load_s": math.inf}, ["load_s (inf)", "finite"]),
    ],
)
def test_rates_that_no_engine_has_are_refused(rates, words):
    with pytest.raises(ConfigError) as raised:
        Rates(**rates)
    assert all(word in str(raised.value) for word in words), raised.value
