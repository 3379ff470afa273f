"""The fake must notice what the other tests rely on it to notice."""

from __future__ import annotations

from array import array

import pytest

from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence, StepPlan
from llm_ray.errors import ExecutorError
from llm_ray.executor.fake import FakeExecutor, answer
from tests.support.engine import make_config, make_engine, make_sequence, run, tokens_of


def make_executor(**settings) -> FakeExecutor:
    executor = FakeExecutor(make_config(**settings), max_in_flight=2)
    executor.start()
    return executor


def make_plan(prompt=(1, 2, 3, 4, 5, 6), *, table=(1, 2), start=0, seq_id=0, step_id=0, is_new=True) -> StepPlan:
    """A prefill of prompt[start:], with the next token wanted."""
    end = len(prompt)
    return StepPlan(
        step_id,
        [seq_id],
        array("q", prompt[start:]),
        array("q", range(start, end)),
        array("q", [table[p // 4] * 4 + p % 4 for p in range(start, end)]),
        array("q", [0, end - start]),
        array("q", [end]),
        [list(table)],
        [True],
        [NewSequence(seq_id, list(prompt), end, SamplingParams(4))] if is_new else [],
    )


def sample(executor: FakeExecutor, plan: StepPlan) -> int:
    executor.submit(plan)
    (token,) = executor.collect().tokens
    return token.token_id


def test_answer_worked_out_without_blocks_is_what_the_engine_gives():
    outputs = run(make_engine(), [make_sequence(0, range(30), max_tokens=20)])
    assert tokens_of(outputs[0]) == answer(range(30), 20)


def test_reused_prefix_in_the_right_blocks_gives_the_right_token():
    executor = make_executor()
    sample(executor, make_plan())
    assert (
        sample(executor, make_plan((1, 2, 3, 4, 9), table=(1, 3), start=4, seq_id=1)) == answer((1, 2, 3, 4, 9), 1)[0]
    )


@pytest.mark.parametrize("table", [(3, 4), (2, 4)], ids=["never written", "another text's"])
def test_wrong_block_under_a_reused_prefix_gives_a_wrong_token(table):
    executor = make_executor()
    sample(executor, make_plan())
    assert sample(executor, make_plan((1, 2, 3, 4, 9), table=table, start=4, seq_id=1)) != answer((1, 2, 3, 4, 9), 1)[0]


def test_equal_tokens_behind_another_prefix_give_a_wrong_token():
    executor = make_executor()
    sample(executor, make_plan((7, 7, 7, 7, 5, 5, 5, 5)))
    sample(executor, make_plan((1, 2, 3, 4), table=(3,), seq_id=1))
    prompt = (1, 2, 3, 4, 5, 5, 5, 5, 9)
    assert sample(executor, make_plan(prompt, table=(3, 2, 4), start=8, seq_id=2)) != answer(prompt, 1)[0]


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("token_ids", array("q", [1, 2, 3, 4, 5, 256]), "vocabulary"),
        ("positions", array("q", [0, 1, 2, 3, 4, 4]), "positions"),
        ("positions", array("q", [0, 1]), "unequal length"),
        ("slot_mapping", array("q", [4, 5, 6, 7, 8, 8]), "written twice"),
        ("slot_mapping", array("q", [4, 5, 6, 7, 9, 8]), "slot_mapping"),
        ("query_start_loc", array("q", [0, 5]), "query_start_loc"),
        ("seq_lens", array("q", [7]), "positions"),
        ("block_tables", [[1, 1]], "block twice"),
        ("block_tables", [[1, 32]], "outside the cache"),
        ("block_tables", [[0, 2]], "scratch"),
        ("block_tables", [[1]], "cannot hold 6 tokens"),
        ("sample", [False], "new but"),
        ("seq_ids", [0, 0], "a sequence twice"),
    ],
)
def test_malformed_plan_is_refused_by_name(column, value, fault):
    plan = make_plan()
    setattr(plan, column, value)
    with pytest.raises(ValueError, match=fault):
        make_executor().submit(plan)


def test_sequence_in_two_steps_at_once_is_refused():
    executor = make_executor()
    executor.submit(make_plan())
    with pytest.raises(ValueError, match="in flight already"):
        executor.submit(make_plan(step_id=1))


def test_token_for_a_sequence_that_was_never_announced_is_refused():
    executor = make_executor()
    executor.submit(make_plan(is_new=False))
    with pytest.raises(KeyError):
        executor.collect()


def test_dead_group_answers_nothing_until_it_is_started_again():
    executor = make_executor()
    executor.submit(make_plan())
    executor.fail()
    for call in (executor.collect, executor.check, lambda: executor.submit(make_plan())):
        with pytest.raises(ExecutorError, match="rank 0 died"):
            call()
    executor.shutdown()
    executor.start()
    assert sample(executor, make_plan()) == answer((1, 2, 3, 4, 5, 6), 1)[0]
