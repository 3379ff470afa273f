"""Who runs in the next step, with how many tokens, and at whose cost."""

from __future__ import annotations

import pytest

from llm_ray.engine.sequence import SequenceStatus
from tests.support.engine import land, make_scheduler, make_sequence, make_sequences, num_scheduled


def test_prompts_join_one_step_until_its_budget_is_used():
    scheduler = make_scheduler(max_num_batched_tokens=16)
    for sequence in make_sequences(4, prompt_len=6):
        scheduler.add(sequence)
    assert num_scheduled(scheduler.schedule()) == {0: 6, 1: 6, 2: 4}
    scheduler.check()


def test_no_more_than_max_num_seqs_run():
    scheduler = make_scheduler(max_num_seqs=3)
    for sequence in make_sequences(5, prompt_len=2):
        scheduler.add(sequence)
    assert scheduler.schedule().seq_ids == [0, 1, 2]
    assert [sequence.seq_id for sequence in scheduler.waiting] == [3, 4]


def test_long_prompt_is_cut_into_chunks_and_sampled_after_the_last():
    scheduler = make_scheduler()
    scheduler.add(make_sequence(0, range(20)))
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule()
        chunks.append((num_scheduled(plan)[0], plan.sample[0], len(plan.new)))
        land(scheduler, plan)
    assert chunks == [(8, False, 0), (8, False, 0), (4, True, 1)]
    assert num_scheduled(scheduler.schedule()) == {0: 1}


def test_chunks_end_on_block_borders_unless_the_budget_is_less_than_a_block():
    scheduler = make_scheduler(long_prefill_token_threshold=7, max_num_batched_tokens=10)
    scheduler.add(make_sequence(0, range(30)))
    scheduler.add(make_sequence(1, range(100, 130)))
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule()
        chunks.append(num_scheduled(plan))
        land(scheduler, plan)
    assert chunks == [{0: 4, 1: 4}] * 3, "of 7 and then 6 tokens, whole blocks"
    narrow = make_scheduler(max_num_batched_tokens=3, max_num_seqs=3)
    narrow.add(make_sequence(0, range(30)))
    assert num_scheduled(narrow.schedule()) == {0: 3}


def test_short_prompt_starts_while_a_long_one_prefills():
    scheduler = make_scheduler(num_blocks=300, max_num_batched_tokens=64, long_prefill_token_threshold=32)
    scheduler.add(make_sequence(0, range(200)))
    land(scheduler, scheduler.schedule())
    scheduler.add(make_sequence(1, range(100, 108)))
    plan = scheduler.schedule()
    assert num_scheduled(plan) == {0: 32, 1: 8}
    assert plan.sample == [False, True]


def test_decodes_are_in_every_step_whatever_prefills_came_before():
    scheduler = make_scheduler(num_blocks=300, max_num_batched_tokens=8, long_prefill_token_threshold=100)
    long, *short = make_sequence(0, range(100)), *(make_sequence(i, [i]) for i in range(1, 6))
    scheduler.add(long)
    land(scheduler, scheduler.schedule())
    for sequence in short:
        scheduler.add(sequence)
    # The long prompt came first and takes all there is: the short ones must wait for a place only until it is done.
    while not all(sequence.status is SequenceStatus.RUNNING for sequence in short):
        land(scheduler, scheduler.schedule())
    scheduler.add(make_sequence(6, range(100, 180)))
    for _ in range(10):
        plan = scheduler.schedule()
        assert {sequence.seq_id for sequence in short} <= set(plan.seq_ids)
        assert plan.num_tokens <= 8
        land(scheduler, plan)


def test_running_prefill_leaves_room_for_younger_decodes():
    scheduler = make_scheduler(num_blocks=300, max_num_batched_tokens=12, long_prefill_token_threshold=8)
    scheduler.add(make_sequence(0, range(100)))
    scheduler.add(make_sequence(1, [7, 8]))
    scheduler.add(make_sequence(2, [8, 9]))
    land(scheduler, scheduler.schedule())
    for _ in range(5):
        plan = scheduler.schedule()
        assert num_scheduled(plan) == {0: 8, 1: 1, 2: 1}
        land(scheduler, plan)


def test_two_that_arrive_together_share_their_prefix_in_the_same_step():
    scheduler = make_scheduler(long_prefill_token_threshold=32)
    first, second = make_sequences(2, prompt_len=12, shared=8)
    scheduler.add(first)
    scheduler.add(second)
    plan = scheduler.schedule()
    assert num_scheduled(plan) == {0: 12, 1: 4}
    assert first.block_table[:2] == second.block_table[:2]
    assert scheduler.blocks.num_used_blocks == 4, "2 shared and 1 own each"
    assert second.num_cached_tokens == 8
    scheduler.check()


def test_thirty_two_arrivals_compute_their_common_prefix_once_by_turns():
    scheduler = make_scheduler(
        block_size=16,
        num_blocks=256,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        long_prefill_token_threshold=128,
    )
    for sequence in make_sequences(32, prompt_len=528, shared=512):
        scheduler.add(sequence)
    num_steps = 0
    while any(sequence.num_output_tokens == 0 for sequence in (*scheduler.running, *scheduler.waiting)):
        plan = scheduler.schedule()
        # 4 sequences take the 4 chunks of 128 in the first step, each behind the one before.
        assert num_steps > 0 or num_scheduled(plan) == {0: 128, 1: 128, 2: 128, 3: 128}
        land(scheduler, plan)
        scheduler.check()
        num_steps += 1
    assert scheduler.blocks.counters.num_prompt_tokens == 512 + 32 * 16
    assert scheduler.blocks.num_used_blocks <= 32 + 32 * 2
    assert num_steps <= 4


def test_youngest_is_preempted_and_nobody_is_admitted_in_that_step():
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    sequences = [make_sequence(0, range(8)), make_sequence(1, range(20, 28)), make_sequence(2, [1])]
    for sequence in sequences[:2]:
        scheduler.add(sequence)
    land(scheduler, scheduler.schedule())
    scheduler.add(sequences[2])
    plan = scheduler.schedule()
    assert plan.seq_ids == [0]
    assert plan.finished == [1], "the sampler forgets the victim"
    assert sequences[1].num_preemptions == 1
    assert sequences[1].num_computed_tokens == 0
    assert [sequence.seq_id for sequence in scheduler.waiting] == [1, 2]
    scheduler.check()


def test_preempted_sequence_is_announced_again_with_all_its_tokens():
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    first, second = make_sequence(0, range(8)), make_sequence(1, range(20, 28))
    scheduler.add(first)
    scheduler.add(second)
    land(scheduler, scheduler.schedule())
    land(scheduler, scheduler.schedule())
    scheduler.finish(first)
    land(scheduler, scheduler.schedule())
    plan = scheduler.schedule()
    assert num_scheduled(plan) == {1: 1}, "8 of its 9 tokens fit the first chunk"
    assert [new.token_ids for new in plan.new] == [[*range(20, 28), 9]]
    assert plan.new[0].num_prompt_tokens == 8
    land(scheduler, plan)
    assert len(plan.new[0].token_ids) == 9, "the sampler's copy does not grow with the sequence"


def test_sequence_in_flight_is_neither_scheduled_nor_preempted_and_whoever_needs_its_block_waits():
    scheduler = make_scheduler(num_groups=2, num_blocks=6, prefix_caching=False)
    for sequence in (make_sequence(0, range(8)), make_sequence(1, range(20, 26)), make_sequence(2, [1])):
        scheduler.add(sequence)
    first = scheduler.schedule()
    assert first.seq_ids == [0, 1]
    second = scheduler.schedule()
    assert second.seq_ids == [2]
    land(scheduler, first)
    assert scheduler.schedule() is None, (
        "0 needs a block and the youngest, who has it, is in flight; 1 must not overtake"
    )
    land(scheduler, second)
    assert scheduler.schedule().seq_ids == [0, 1]
    assert [sequence.seq_id for sequence in scheduler.waiting] == [2]


def test_abort_in_flight_frees_its_blocks_when_the_step_lands():
    scheduler = make_scheduler()
    (sequence,) = make_sequences(1, prompt_len=8)
    scheduler.add(sequence)
    plan = scheduler.schedule()
    scheduler.finish(sequence)
    assert scheduler.blocks.num_used_blocks == 2
    scheduler.land(plan)
    assert scheduler.blocks.num_used_blocks == 0
    assert scheduler.num_sequences == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_abort_of_a_resting_sequence_frees_its_blocks_at_once(num_steps):
    scheduler = make_scheduler()
    (sequence,) = make_sequences(1, prompt_len=12)
    scheduler.add(sequence)
    for _ in range(num_steps):
        land(scheduler, scheduler.schedule())
    scheduler.finish(sequence)
    assert scheduler.blocks.num_used_blocks == 0
    assert scheduler.schedule() is None


def test_newcomer_waits_until_its_whole_prompt_would_fit():
    scheduler = make_scheduler(num_blocks=8, prefix_caching=False, long_prefill_token_threshold=4)
    scheduler.add(make_sequence(0, range(16)))
    scheduler.add(make_sequence(1, range(50, 78)))
    for _ in range(4):
        plan = scheduler.schedule()
        assert plan.seq_ids == [0]
        land(scheduler, plan)


def test_sequences_spread_over_the_steps_in_flight():
    scheduler = make_scheduler(num_groups=2)
    for sequence in make_sequences(6, prompt_len=2):
        scheduler.add(sequence)
    assert scheduler.schedule().seq_ids == [0, 1, 2]
    assert scheduler.schedule().seq_ids == [3, 4, 5]
    assert scheduler.schedule() is None
