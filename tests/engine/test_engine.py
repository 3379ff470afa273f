"""From sequences to tokens: ends, refusals, sharing, preemption, aborts, fairness; all with the exact fake model."""

from __future__ import annotations

import pytest

from llm_ray.engine.outputs import FinishOutput, TokenOutput
from llm_ray.engine.sequence import FinishReason, SamplingParams
from llm_ray.engine.step import SampledToken, StepResult
from llm_ray.errors import ExecutorError, InvalidRequestError
from llm_ray.executor.fake import answer
from tests.support.engine import (
    ends_of,
    make_engine,
    make_sequence,
    make_sequences,
    num_scheduled,
    num_used_blocks,
    plans_of,
    run,
    tokens_of,
)


def test_answer_ends_at_max_tokens():
    outputs = run(make_engine(), [make_sequence(0, [1, 2, 3], max_tokens=5)])[0]
    assert tokens_of(outputs) == answer([1, 2, 3], 5)
    assert outputs[-1] == FinishOutput(FinishReason.LENGTH)


def test_stop_token_is_reported_right_before_the_end():
    expected = answer([1, 2, 3], 10)
    stop = expected[3]
    assert stop not in expected[:3]
    outputs = run(make_engine(), [make_sequence(0, [1, 2, 3], max_tokens=10, stop_token_ids=frozenset({stop}))])[0]
    assert outputs[-2:] == [TokenOutput(stop), FinishOutput(FinishReason.STOP)]
    assert tokens_of(outputs) == expected[:4]


def test_stop_token_that_is_also_the_last_allowed_one_counts_as_stop():
    stop = answer([1, 2, 3], 1)[0]
    outputs = run(make_engine(), [make_sequence(0, [1, 2, 3], max_tokens=1, stop_token_ids=frozenset({stop}))])[0]
    assert ends_of(outputs) == [FinishOutput(FinishReason.STOP)]


def test_answer_ends_at_max_model_len():
    outputs = run(make_engine(max_model_len=9), [make_sequence(0, [1, 2, 3], max_tokens=50)])[0]
    assert tokens_of(outputs) == answer([1, 2, 3], 6)
    assert outputs[-1] == FinishOutput(FinishReason.LENGTH)


def test_max_model_len_is_lowered_to_what_the_cache_holds_and_reached():
    engine = make_engine(num_blocks=4)
    assert engine.info.max_model_len == 13, "3 blocks of 4, and the newest token needs no KV"
    outputs = run(engine, [make_sequence(0, [1, 2, 3], max_tokens=50), make_sequence(1, range(12), max_tokens=50)])
    assert tokens_of(outputs[0]) == answer([1, 2, 3], 10)
    assert tokens_of(outputs[1]) == answer(range(12), 1)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(4), "empty"),
        (range(31 * 4 + 1), SamplingParams(4), "max_model_len .125, with 31 KV blocks of 4 tokens."),
        ([1, 256], SamplingParams(4), "token 256"),
        ([1, -1], SamplingParams(4), "token -1"),
        ([1], SamplingParams(0), "max_tokens"),
        ([1], SamplingParams(4, logit_bias=((256, 1.0),)), "logit_bias has token 256"),
    ],
)
def test_request_that_can_never_be_served_is_refused_by_name(prompt, params, message):
    with pytest.raises(InvalidRequestError, match=message):
        make_engine().check_request(list(prompt), [params])


def test_longest_possible_prompt_is_accepted_and_answered():
    engine = make_engine()
    prompt = [i % 250 for i in range(31 * 4)]
    engine.check_request(prompt, [SamplingParams(4)])
    assert tokens_of(run(engine, [make_sequence(0, prompt, max_tokens=4)])[0]) == answer(prompt, 1)


def test_logprobs_reach_the_output_only_when_asked_for():
    outputs = run(make_engine(), [make_sequence(0, max_tokens=1, logprobs=2), make_sequence(1, max_tokens=1)])
    assert outputs[0][0].logprob is not None
    assert len(outputs[0][0].top) == 2
    assert outputs[1][0].logprob is None


def test_choices_of_one_prompt_share_its_blocks_and_differ_by_seed():
    engine = make_engine()
    prompt = list(range(8))
    outputs = run(engine, [make_sequence(i, prompt, max_tokens=6, seed=i) for i in range(4)])
    assert [tokens_of(outputs[i]) for i in range(4)] == [answer(prompt, 6, seed=i) for i in range(4)]
    assert engine.stats().num_prompt_tokens == 8 + 3 * 4, "the block that holds the last prompt token is each one's own"


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_thirty_two_arrivals_compute_a_common_prefix_once(max_in_flight):
    engine = make_engine(
        max_in_flight=max_in_flight,
        block_size=16,
        num_blocks=256,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        long_prefill_token_threshold=128,
    )
    sequences = make_sequences(32, prompt_len=528, shared=512, max_tokens=3)
    prompts = [list(sequence.token_ids) for sequence in sequences]
    outputs = run(engine, sequences)
    assert [tokens_of(outputs[i]) for i in range(32)] == [answer(prompt, 3) for prompt in prompts]
    assert engine.stats().num_prompt_tokens == 528 + 31 * 16
    assert engine.stats().num_cached_tokens >= 31 * 512 - 3 * 512


def test_follow_up_turn_finds_the_answer_of_the_turn_before():
    engine = make_engine()
    prompt = list(range(10))
    first = tokens_of(run(engine, [make_sequence(0, prompt, max_tokens=7)])[0])
    follow_up = make_sequence(1, [*prompt, *first, 1, 2], max_tokens=2)
    run(engine, [follow_up])
    assert follow_up.num_cached_tokens == 16, "10 + 7 tokens, of which the last never had KV"


def test_preempted_sequence_resumes_with_the_same_tokens():
    engine = make_engine(num_blocks=9)
    sequences = [make_sequence(i, [i] * 6, max_tokens=16) for i in range(3)]
    outputs = run(engine, sequences)
    assert engine.stats().num_preemptions > 0
    assert sequences[0].num_preemptions == 0, "the oldest is never the victim"
    for i in range(3):
        assert tokens_of(outputs[i]) == answer([i] * 6, 16)


def test_preempted_sequence_reports_the_cached_tokens_of_its_first_admission_only():
    engine = make_engine(num_blocks=9)
    sequences = [make_sequence(i, [i] * 6, max_tokens=16) for i in range(3)]
    run(engine, sequences)
    assert engine.stats().num_cached_tokens > 0, "its own blocks were found again"
    assert [sequence.num_cached_tokens for sequence in sequences] == [0, 0, 0]


def test_client_disconnect_frees_blocks_in_the_next_step():
    engine = make_engine()
    for sequence in (make_sequence(0, range(12), max_tokens=50), make_sequence(1, [1, 2], max_tokens=50)):
        engine.add(sequence)
    engine.step()
    engine.step()
    assert engine.abort(0) == [(0, FinishOutput(FinishReason.ABORT))]
    assert engine.abort(0) == []
    engine.step()
    assert num_used_blocks(engine) == 1
    assert 0 not in plans_of(engine)[-1].seq_ids
    assert plans_of(engine)[-1].finished == [0]


def test_abort_while_its_step_is_in_flight_frees_blocks_when_that_step_is_collected():
    engine = make_engine(max_in_flight=2)
    engine.add(make_sequence(0, [1, 2], max_tokens=50))
    engine.add(make_sequence(1, range(12), max_tokens=50))
    events = engine.step()
    assert [seq_id for seq_id, _ in events] == [0]
    assert 1 in plans_of(engine)[-1].seq_ids, "submitted, not collected"
    assert engine.abort(1) == [(1, FinishOutput(FinishReason.ABORT))]
    assert engine.abort(1) == []
    assert num_used_blocks(engine) == 3
    assert [seq_id for seq_id, _ in engine.step()] == [], "its token is dropped"
    assert num_used_blocks(engine) == 1
    assert engine.scheduler.num_sequences == 1


def test_long_prefill_does_not_hold_up_a_short_request():
    engine = make_engine(num_blocks=300, max_num_batched_tokens=64, long_prefill_token_threshold=32)
    engine.add(make_sequence(0, [i % 251 for i in range(1000)], max_tokens=1))
    engine.step()
    engine.add(make_sequence(1, range(8), max_tokens=4))
    events = [engine.step() for _ in range(4)]
    assert [len(of_step) for of_step in events] == [1, 1, 1, 2], "a token in each step from its first"
    assert all(num_scheduled(plan)[0] == 32 for plan in plans_of(engine)), "and the long one went on at full speed"


def test_no_decode_waits_while_prefills_come_and_go():
    engine = make_engine(num_blocks=400, max_num_seqs=8, max_num_batched_tokens=8, long_prefill_token_threshold=8)
    decoding = set(range(4))
    for i in decoding:
        engine.add(make_sequence(i, [i], max_tokens=60))
    engine.step()
    for i in range(4, 8):
        engine.add(make_sequence(i, [(i * j) % 256 for j in range(40)], max_tokens=2))
    for _ in range(50):
        engine.step()
        assert decoding <= set(plans_of(engine)[-1].seq_ids)


@pytest.mark.parametrize(
    "wrong",
    [StepResult(7, [SampledToken(0, 1)]), StepResult(0, []), StepResult(0, [SampledToken(1, 1)])],
    ids=["other step", "no token", "other sequence"],
)
def test_answer_that_does_not_fit_the_plan_is_an_executor_error(wrong, monkeypatch):
    engine = make_engine()
    engine.add(make_sequence())
    monkeypatch.setattr(engine.executor, "collect", lambda: wrong)
    with pytest.raises(ExecutorError, match="wants tokens for sequences"):
        engine.step()


def test_restart_begins_with_an_empty_cache_and_keeps_the_totals():
    engine = make_engine()
    run(engine, [make_sequence(0, range(12))])
    engine.shutdown()
    engine.start()
    again = make_sequence(1, range(12))
    run(engine, [again])
    assert again.num_cached_tokens == 0
    assert engine.stats().num_generated_tokens == 8
