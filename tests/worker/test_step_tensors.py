"""The order of a step's rows, and that nothing is lost or mixed up by it."""

from __future__ import annotations

import random
from array import array

import pytest

from llm_ray.engine.step import StepPlan
from llm_ray.worker.step_tensors import MIN_COMMON_BLOCKS, build

BLOCK = 4
Row = tuple[int, int, list[int]]  # length, tokens in this step, block table


def make_plan(rows: list[Row], sample: list[bool] | None = None) -> StepPlan:
    """Row i is sequence 10 + i; its token at position p is 1000 * i + p."""
    starts, tokens, positions, slots = [0], [], [], []
    for index, (length, count, table) in enumerate(rows):
        own = range(length - count, length)
        tokens += [1000 * index + position for position in own]
        positions += own
        slots += [table[position // BLOCK] * BLOCK + position % BLOCK for position in own]
        starts.append(starts[-1] + count)
    return StepPlan(
        step_id=0,
        seq_ids=[10 + index for index in range(len(rows))],
        token_ids=array("i", tokens),
        positions=array("i", positions),
        slot_mapping=array("q", slots),
        query_start_loc=array("i", starts),
        seq_lens=array("i", [length for length, _, _ in rows]),
        block_tables=[table for _, _, table in rows],
        sample=sample or [True] * len(rows),
    )


def test_decodes_come_first_by_block_then_chunks_behind_a_prefix_then_the_rest() -> None:
    rows: list[Row] = [
        (13, 5, [1, 2, 3, 9]),
        (9, 1, [7, 8, 5]),
        (13, 1, [1, 2, 3, 4]),
        (12, 2, [1, 2, 6]),
        (6, 6, [20, 21]),
        (14, 1, [1, 2, 3, 30]),
    ]
    step = build(make_plan(rows, [True, True, False, True, False, True]), BLOCK)
    assert step.seq_ids == [12, 15, 11, 10, 13, 14]
    assert step.num_decodes == 3
    assert step.runs == [(0, 2, 3), (2, 3, 0), (3, 5, 2)]
    assert step.query_start_loc.tolist() == [0, 1, 2, 3, 8, 10, 16]
    assert step.sample_seq_ids == [10, 11, 13, 15]
    assert step.token_ids[step.sample_rows].tolist() == [12, 1008, 3011, 5013]
    assert step.block_tables[2].tolist() == [7, 8, 5, 0]


def test_a_prefix_that_a_chunk_is_still_computing_is_not_common() -> None:
    rows: list[Row] = [(12, 12, [1, 2, 3]), (16, 4, [1, 2, 3, 4])]
    step = build(make_plan(rows), BLOCK)
    assert step.runs == []
    assert step.seq_ids == [10, 11]


@pytest.mark.parametrize("seed", range(30))
def test_every_token_keeps_its_place_and_every_run_is_true(seed: int) -> None:
    rng = random.Random(seed)
    shared = list(range(1, 6))
    rows: list[Row] = []
    for index in range(rng.randint(1, 12)):
        length = rng.randint(1, 28)
        common = rng.randint(0, 5)
        table = (shared[:common] + list(range(100 + 10 * index, 110 + 10 * index)))[: -(-length // BLOCK)]
        rows.append((length, 1 if rng.random() < 0.5 else rng.randint(1, length), table))
    plan = make_plan(rows)
    step = build(plan, BLOCK)
    for row, seq_id in enumerate(step.seq_ids):
        length, count, table = rows[seq_id - 10]
        own = slice(int(step.query_start_loc[row]), int(step.query_start_loc[row + 1]))
        positions = list(range(length - count, length))
        assert step.positions[own].tolist() == positions
        assert step.token_ids[own].tolist() == [1000 * (seq_id - 10) + position for position in positions]
        assert step.slot_mapping[own].tolist() == [table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        assert step.block_tables[row, : len(table)].tolist() == table
        assert int(step.seq_lens[row]) == length
        assert (count == 1) == (row < step.num_decodes)
    assert step.token_ids[step.sample_rows].tolist() == [1000 * i + rows[i][0] - 1 for i in range(len(rows))]
    assert step.sample_seq_ids == plan.seq_ids
    end = 0
    for start, stop, common in step.runs:
        assert start == end
        end = stop
        assert common == 0 or common >= MIN_COMMON_BLOCKS
        for row in range(start, stop):
            length, count, _ = rows[step.seq_ids[row] - 10]
            assert (length - count) // BLOCK >= common
            assert step.block_tables[row, :common].tolist() == step.block_tables[start, :common].tolist()
    assert end >= step.num_decodes
