"""Blocks: reference counts, reuse order, the prefix cache and what it must never find."""

from __future__ import annotations

import pytest

from llm_ray.engine.block_manager import BlockManager
from llm_ray.engine.sequence import Sequence
from tests.support.engine import make_sequence

PROMPT = list(range(1, 13))


def compute(blocks: BlockManager, sequence: Sequence, num_tokens: int | None = None) -> Sequence:
    """Take over what is cached, then compute and publish the rest."""
    end = sequence.num_tokens if num_tokens is None else num_tokens
    blocks.share(sequence, blocks.match(sequence))
    assert blocks.allocate(sequence, end)
    blocks.publish(sequence, end)
    sequence.num_computed_tokens = end
    return sequence


def test_scratch_block_is_never_handed_out():
    blocks = BlockManager(4, 4)
    sequence = make_sequence(prompt=range(12))
    assert blocks.allocate(sequence, 12)
    assert sorted(sequence.block_table) == [1, 2, 3]
    assert not blocks.allocate(make_sequence(1), 1)


def test_allocation_that_does_not_fit_changes_nothing():
    blocks = BlockManager(4, 4)
    sequence = make_sequence()
    assert not blocks.allocate(sequence, 13)
    assert sequence.block_table == []
    assert blocks.num_free_blocks == 3


def test_equal_prefix_is_shared_and_one_token_is_left_to_compute():
    blocks = BlockManager(16, 4)
    first = compute(blocks, make_sequence(0, PROMPT))
    second = make_sequence(1, PROMPT)
    assert blocks.match(second) == first.block_table[:2], "the last of 12 tokens must be computed, so 2 blocks of 3"
    compute(blocks, second)
    assert blocks.num_used_blocks == 4
    assert blocks.counters.num_cached_tokens == 8
    blocks.check([first.block_table, second.block_table])


def test_partial_block_is_never_shared():
    blocks = BlockManager(16, 4)
    compute(blocks, make_sequence(0, PROMPT), 7)
    assert len(blocks.match(make_sequence(1, PROMPT))) == 1


def test_block_after_a_different_prefix_is_not_found():
    blocks = BlockManager(16, 4)
    compute(blocks, make_sequence(0, PROMPT))
    assert blocks.match(make_sequence(1, [99, *PROMPT[1:]])) == []


def test_nothing_is_found_with_prefix_caching_off():
    blocks = BlockManager(16, 4, prefix_caching=False)
    compute(blocks, make_sequence(0, PROMPT))
    assert blocks.match(make_sequence(1, PROMPT)) == []


def test_freed_block_keeps_its_content_until_reused_oldest_first_and_tail_first():
    blocks = BlockManager(7, 4)
    old, young = compute(blocks, make_sequence(0, PROMPT)), compute(blocks, make_sequence(1, range(50, 62)))
    blocks.free(old)
    blocks.free(young)
    assert blocks.num_used_blocks == 0
    assert len(blocks.match(make_sequence(2, [*PROMPT, 0]))) == 3
    assert blocks.allocate(make_sequence(3), 4), "takes the tail of the one freed first"
    assert len(blocks.match(make_sequence(2, [*PROMPT, 0]))) == 2
    assert len(blocks.match(make_sequence(2, [*range(50, 62), 0]))) == 3
    assert blocks.counters.num_evicted_blocks == 1


def test_block_without_content_is_reused_before_a_cached_one():
    blocks = BlockManager(4, 4)
    cached, plain = compute(blocks, make_sequence(0, PROMPT[:8])), make_sequence(1, [7])
    blocks.allocate(plain, 1)
    (expected,) = plain.block_table
    blocks.free(cached)
    blocks.free(plain)
    newcomer = make_sequence(2)
    blocks.allocate(newcomer, 1)
    assert newcomer.block_table == [expected]
    assert blocks.counters.num_evicted_blocks == 0


def test_sharing_a_free_block_takes_it_off_the_free_list():
    blocks = BlockManager(4, 4)
    blocks.free(compute(blocks, make_sequence(0, PROMPT)))
    second = make_sequence(1, PROMPT)
    found = blocks.match(second)
    assert blocks.num_idle(found) == 2
    blocks.share(second, found)
    assert blocks.num_free_blocks == 1
    blocks.check([second.block_table])


@pytest.mark.parametrize("wrong", [[1, 1], [0], [3], [99], [-1]], ids=["twice", "scratch", "free", "none", "negative"])
def test_wrong_free_is_refused_and_changes_nothing(wrong):
    blocks = BlockManager(8, 4)
    sequence = make_sequence()
    blocks.allocate(sequence, 8)
    assert sequence.block_table == [1, 2]
    with pytest.raises(ValueError, match="block"):
        blocks.free_blocks([2, *wrong])
    blocks.check([sequence.block_table])


def test_double_free_is_refused():
    blocks = BlockManager(8, 4)
    sequence = make_sequence()
    blocks.allocate(sequence, 8)
    table = list(sequence.block_table)
    blocks.free(sequence)
    with pytest.raises(ValueError, match="not in use"):
        blocks.free_blocks(table)
    blocks.check([])


def test_evicted_block_is_not_found_again():
    blocks = BlockManager(4, 4)
    blocks.free(compute(blocks, make_sequence(0, PROMPT)))
    other = compute(blocks, make_sequence(1, range(50, 62)))
    assert blocks.match(make_sequence(2, PROMPT)) == []
    blocks.check([other.block_table])


def test_colliding_digest_finds_only_the_very_same_text():
    blocks = BlockManager(32, 4, hash_block=lambda parent, tokens: b"always the same")
    first = compute(blocks, make_sequence(0, PROMPT[:4]))
    assert blocks.match(make_sequence(1, [*range(50, 54), 0])) == []
    assert blocks.match(make_sequence(2, [*PROMPT[:4], 0])) == first.block_table


def test_equal_tokens_behind_a_colliding_prefix_are_not_found():
    """Two prefixes with one digest: the block after the first looks like the block after the second."""
    blocks = BlockManager(32, 4, hash_block=lambda parent, tokens: bytes([len(parent) + 1]) * (len(parent) + 1))
    tail = [5, 6, 7, 8]
    compute(blocks, make_sequence(0, [1, 1, 1, 1, *tail]))
    other = make_sequence(1, [2, 2, 2, 2, *tail, 0])
    blocks.share(other, blocks.match(other))
    assert other.num_computed_tokens == 0
    blocks.allocate(other, 4)
    blocks.publish(other, 4)
    other.num_computed_tokens = 4
    assert blocks.match(other) == []


def test_content_that_lost_its_digest_to_a_collision_is_forgotten():
    blocks = BlockManager(32, 4, hash_block=lambda parent, tokens: b"x")
    first = compute(blocks, make_sequence(0, [1] * 4))
    blocks.free(first)
    second = compute(blocks, make_sequence(1, [2] * 4))
    blocks.check([second.block_table])
    assert blocks.match(make_sequence(2, [1] * 5)) == []


def test_two_sequences_that_computed_the_same_block_go_on_sharing():
    blocks = BlockManager(32, 4)
    first, second = make_sequence(0, PROMPT), make_sequence(1, PROMPT)
    for sequence in (first, second):
        assert blocks.allocate(sequence, 4)
        blocks.publish(sequence, 4)
        sequence.num_computed_tokens = 4
    assert first.block_table != second.block_table
    compute(blocks, first)
    assert blocks.match(second) == first.block_table[1:2]


def test_check_notices_a_lost_block():
    blocks = BlockManager(8, 4)
    sequence = make_sequence()
    blocks.allocate(sequence, 8)
    with pytest.raises(ValueError, match="do not add up"):
        blocks.check([sequence.block_table[:1]])
