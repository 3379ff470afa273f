"""Writes a `StepPlan` from the rows the scheduler chose."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from llm_ray.engine.sequence import Sequence
from llm_ray.engine.step import NewSequence, StepPlan


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's tokens start:end in one step."""

    sequence: Sequence
    start: int
    end: int


def build_plan(step_id: int, rows: list[Row], block_size: int, finished: list[int]) -> StepPlan:
    """Rows keep their order. The arrays are int64 (typecode q).

    The block tables are the sequences' own lists, not copies: they stay as they are until the step is collected.
    A sequence that was preempted and resumed may be both in `finished` and in `new`: the rank drops, then takes in.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    query_start_loc = [0]
    new: list[NewSequence] = []
    for row in rows:
        sequence, start, end = row.sequence, row.start, row.end
        table = sequence.block_table
        if end - start == 1:
            token_ids.append(sequence.token_ids[start])
            positions.append(start)
            slot_mapping.append(table[start // block_size] * block_size + start % block_size)
        else:
            token_ids += sequence.token_ids[start:end]
            positions += range(start, end)
            slot_mapping += slots(table, start, end, block_size)
        query_start_loc.append(len(token_ids))
        if end == len(sequence.token_ids) and not sequence.is_known_to_sampler:
            new.append(introduce(sequence))
    return StepPlan(
        step_id=step_id,
        seq_ids=[row.sequence.seq_id for row in rows],
        token_ids=array("q", token_ids),
        positions=array("q", positions),
        slot_mapping=array("q", slot_mapping),
        query_start_loc=array("q", query_start_loc),
        seq_lens=array("q", [row.end for row in rows]),
        block_tables=[row.sequence.block_table for row in rows],
        sample=[row.end == len(row.sequence.token_ids) for row in rows],
        new=new,
        finished=finished,
    )


def slots(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of the tokens start:end, block by block."""
    found: list[int] = []
    for index in range(start // block_size, -(-end // block_size)):
        # Token p of block `index` lies p - index * block_size behind the block's first slot.
        offset = (block_table[index] - index) * block_size
        found += range(max(start, index * block_size) + offset, min(end, (index + 1) * block_size) + offset)
    return found


def introduce(sequence: Sequence) -> NewSequence:
    """A copy of the tokens: the sampler's history and the engine's grow apart from here."""
    sequence.is_known_to_sampler = True
    return NewSequence(sequence.seq_id, list(sequence.token_ids), sequence.num_prompt_tokens, sequence.params)
