"""One step's plan as tensors, its rows put into the order that the attention backends want. Knows no model.

Row order: decode rows (one token) sorted by their first block, then short chunks behind a shared prefix, then the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_ray.engine.step import StepPlan

IntArray: TypeAlias = npt.NDArray[np.int64]

MIN_COMMON_BLOCKS = 2
"""Fewer common leading blocks are not worth a product of their own."""

MAX_SHORT_CHUNK = 32
"""Query tokens up to which a chunk behind a shared prefix is attended together with its like."""


@dataclass(slots=True)
class StepTensors:
    """T tokens of S rows; row i owns tokens query_start_loc[i]:query_start_loc[i+1].

    token_ids, positions, slot_mapping: int64 [T]; query_start_loc: int32 [S+1]; seq_lens: int32 [S], this step's tokens
    included; block_tables: int32 [S, longest], padded with 0. seq_ids: each row's sequence.
    runs: (first row, end row, common leading blocks) over the decode rows, then over the short chunks; rows beyond the
    last run are chunks on their own. A run's common blocks hold only tokens that precede every query of the run.
    sample_rows: int64 [N], tokens whose logits are wanted, in the plan's order like sample_seq_ids.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    num_decodes: int
    runs: list[tuple[int, int, int]]
    seq_ids: list[int]
    sample_rows: Tensor
    sample_seq_ids: list[int]

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]


def build(plan: StepPlan, block_size: int, device: torch.device | None = None) -> StepTensors:
    """Reorder `plan` (not changed) and turn it into tensors on `device` (default: CPU, sharing memory with numpy)."""
    starts, lens = np.array(plan.query_start_loc, dtype=np.int64), np.array(plan.seq_lens, dtype=np.int64)
    counts = np.diff(starts)
    tables = _pad(plan.block_tables)
    order, num_decodes, runs = _arrange(counts, lens, tables, block_size)
    token_ids, positions, slots = (
        np.array(column, dtype=np.int64) for column in (plan.token_ids, plan.positions, plan.slot_mapping)
    )
    new_starts = np.concatenate(([0], counts[order].cumsum())).astype(np.int64)
    if not np.array_equal(order, np.arange(len(order))):
        tokens = np.arange(len(token_ids)) + np.repeat(starts[order] - new_starts[:-1], counts[order])
        token_ids, positions, slots = token_ids[tokens], positions[tokens], slots[tokens]
    last = np.empty(len(order), dtype=np.int64)
    last[order] = new_starts[1:] - 1
    wanted = np.flatnonzero(plan.sample)
    step = StepTensors(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slots),
        query_start_loc=torch.from_numpy(new_starts.astype(np.int32)),
        seq_lens=torch.from_numpy(lens[order].astype(np.int32)),
        block_tables=torch.from_numpy(np.ascontiguousarray(tables[order])),
        num_decodes=num_decodes,
        runs=runs,
        seq_ids=[plan.seq_ids[i] for i in order.tolist()],
        sample_rows=torch.from_numpy(last[wanted]),
        sample_seq_ids=[plan.seq_ids[i] for i in wanted.tolist()],
    )
    return step if device is None or device.type == "cpu" else _move(step, device)


def _pad(block_tables: list[list[int]]) -> npt.NDArray[np.int32]:
    width = max(map(len, block_tables), default=0)
    tables = np.zeros((len(block_tables), max(width, 1)), dtype=np.int32)
    for row, table in zip(tables, block_tables, strict=True):
        row[: len(table)] = table
    return tables


def _arrange(
    counts: IntArray, lens: IntArray, tables: npt.NDArray[np.int32], block_size: int
) -> tuple[IntArray, int, list[tuple[int, int, int]]]:
    """(new order of rows, number of decode rows, runs)."""
    full = (lens - counts) // block_size  # blocks that lie wholly before a row's first query
    first = tables[:, 0]
    decodes = np.flatnonzero(counts == 1)
    decodes = decodes[np.argsort(first[decodes], kind="stable")]
    chunks = np.flatnonzero(counts != 1)
    if len(chunks) == 0:
        return decodes, len(decodes), _runs(tables[decodes], full[decodes])
    is_short = (counts[chunks] <= MAX_SHORT_CHUNK) & (full[chunks] >= MIN_COMMON_BLOCKS)
    short = chunks[is_short]
    short = short[np.argsort(first[short], kind="stable")]
    short_runs = [run for run in _runs(tables[short], full[short]) if run[2] > 0]
    grouped = np.concatenate([short[start:end] for start, end, _ in short_runs] or [short[:0]])
    runs = _runs(tables[decodes], full[decodes])
    at = len(decodes)
    for start, end, common in short_runs:
        runs.append((at, at + end - start, common))
        at += end - start
    alone = chunks[~np.isin(chunks, grouped)]
    return np.concatenate([decodes, grouped, alone]).astype(np.int64), len(decodes), runs


def _runs(tables: npt.NDArray[np.int32], full: IntArray) -> list[tuple[int, int, int]]:
    """Cut rows sorted by first block into runs of equal leading blocks; neighbours without any become one run."""
    if len(tables) == 0:
        return []
    cuts = [0, *(np.flatnonzero(np.diff(tables[:, 0])) + 1).tolist(), len(tables)]
    runs: list[tuple[int, int, int]] = []
    for start, end in pairwise(cuts):
        common = 0
        if end - start > 1:
            limit = int(full[start:end].min())
            equal = (tables[start:end, :limit] == tables[start, :limit]).all(axis=0)
            common = int(equal.cumprod().sum())
        if common < MIN_COMMON_BLOCKS:
            common = 0
        if common == 0 and runs and runs[-1][2] == 0:
            runs[-1] = (runs[-1][0], end, 0)
        else:
            runs.append((start, end, common))
    return runs


def _move(step: StepTensors, device: torch.device) -> StepTensors:
    return StepTensors(
        *(value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for value in _values(step))  # type: ignore[arg-type]
    )


def _values(step: StepTensors) -> list[object]:
    return [getattr(step, name) for name in StepTensors.__slots__]
