"""Decides once a step which rows `torch_cpu` attends together. Pure functions of the step; no keys, no queries.

Three shapes of work: a Group of rows padded to one length, a Group behind a shared prefix (cascade), a single Chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from llm_ray.worker.attention.base import AttentionStep

# A group costs about as much in small calls as this many gathered elements (keys of one layer) cost in copies and
# products; measured with 9/3 heads of 64 in bf16, it only has to be right within a factor of four.
GROUP_COST = 100_000
# Bounds a group's gathered keys and its scores, elements each, so that scratch memory stays near the last cache.
MAX_GROUP_ELEMENTS = 1 << 24
TILE_ROWS = 128
TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What the planner must know of the layers: the largest over all of them, per token."""

    block_size: int
    num_heads: int
    kv_elements: int
    dtype: torch.dtype
    group_cost: int = GROUP_COST


@dataclass(frozen=True, slots=True)
class Group:
    """num_rows rows of `width` queries each (padded by repeating the last) over gathered blocks.

    tokens: which queries, [num_rows * width], None when they are exactly start:end. kept: the unpadded among them.
    prefix: ids of the shared blocks or None. blocks: [num_rows * n] ids of each row's own blocks.
    bias: [num_rows, width, 1, n * block_size], 0 where the query sees the key, else -inf.
    """

    start: int
    end: int
    num_rows: int
    width: int
    tokens: torch.Tensor | None
    kept: torch.Tensor | None
    prefix: torch.Tensor | None
    blocks: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries start:end against gathered keys low:high. bias: [end - start, 1, high - low], None when all are seen."""

    start: int
    end: int
    low: int
    high: int
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row's queries, tile after tile, over its own blocks."""

    blocks: torch.Tensor
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    groups: tuple[Group, ...]
    chunks: tuple[Chunk, ...]


class Planner:
    """Reads one step; `make` then gives the plan for layers of one window. Rows outside every run are chunks."""

    def __init__(self, step: AttentionStep, shape: Shape, *, cascade: bool = True) -> None:
        self._shape = shape
        self._cascade = cascade
        self._runs = step.runs
        self._query_start = step.query_start_loc.numpy().astype(np.int64)
        self._lens = step.seq_lens.numpy().astype(np.int64)
        self._tables = step.block_tables.numpy()
        self._counts = np.diff(self._query_start)
        self.max_len = int(self._lens.max(initial=0))

    def make(self, window: int) -> Plan:
        """window: tokens a query looks back, itself included; 0 for all."""
        groups: list[Group] = []
        loose: list[int] = []
        singles: list[int] = []
        covered = 0
        for first, end, common in self._runs:
            singles += range(covered, first)
            covered = end
            rows = np.arange(first, end)
            common = 0 if window else self._shared_blocks(rows, common)
            if common:
                for part in self._split(rows, common):
                    groups.append(self._group(part, common, 0))
            else:
                for row in range(first, end):
                    (loose if self._counts[row] == 1 else singles).append(row)
        singles += range(covered, len(self._lens))
        for part in self._buckets(np.array(loose, dtype=np.int64), window):
            if len(part) == 1:
                singles.append(int(part[0]))
            else:
                groups.append(self._group(part, 0, window))
        return Plan(tuple(groups), tuple(self._chunk(row, window) for row in singles))

    def _shared_blocks(self, rows: NDArray[np.int64], common: int) -> int:
        """How many of the common blocks to attend once: none of them may hold or follow any of the rows' queries."""
        block_size = self._shape.block_size
        common = min(common, int((self._lens[rows] - self._counts[rows]).min()) // block_size)
        saved = (len(rows) - 1) * common * block_size * self._shape.kv_elements
        is_decode = int(self._counts[rows].max()) == 1
        return common if self._cascade and saved > (self._shape.group_cost if is_decode else 0) else 0

    def _own_blocks(self, rows: NDArray[np.int64], window: int) -> NDArray[np.int64]:
        lens, block_size = self._lens[rows], self._shape.block_size
        first_seen = np.maximum(lens - self._counts[rows] - window + 1, 0) if window else np.zeros_like(lens)
        return -(-lens // block_size) - first_seen // block_size

    def _buckets(self, rows: NDArray[np.int64], window: int) -> list[NDArray[np.int64]]:
        """Cut decode rows by length wherever the padding saved pays for one more group."""
        if len(rows) == 0:
            return []
        sizes = self._own_blocks(rows, window)
        order = np.argsort(-sizes, kind="stable")
        sizes, block_elements = sizes[order], self._shape.block_size * self._shape.kv_elements
        parts: list[NDArray[np.int64]] = []
        pending = [(0, len(rows))]
        while pending:
            low, high = pending.pop()
            saved = (sizes[low] - sizes[low:high]) * np.arange(high - low, 0, -1) * block_elements
            cut = int(saved.argmax())
            if saved[cut] > self._shape.group_cost:
                pending += [(low, low + cut), (low + cut, high)]
                continue
            limit = max(1, MAX_GROUP_ELEMENTS // int(sizes[low] * block_elements))
            parts += [np.sort(rows[order[at : min(at + limit, high)]]) for at in range(low, high, limit)]
        return parts

    def _split(self, rows: NDArray[np.int64], common: int) -> list[NDArray[np.int64]]:
        """Cut a run so that neither its scores nor its gathered keys exceed the bound."""
        blocks = int(self._own_blocks(rows, 0).max())
        scores = int(self._counts[rows].max()) * self._shape.num_heads * blocks * self._shape.block_size
        keys = (blocks - common) * self._shape.block_size * self._shape.kv_elements
        limit = max(1, MAX_GROUP_ELEMENTS // max(scores, keys))
        return [rows[at : at + limit] for at in range(0, len(rows), limit)]

    def _group(self, rows: NDArray[np.int64], common: int, window: int) -> Group:
        block_size = self._shape.block_size
        lens, counts, starts = self._lens[rows], self._counts[rows], self._query_start[rows]
        width, last = int(counts.max()), -(-lens // block_size) - 1
        first = np.full_like(lens, common)
        if window:
            first = np.maximum(lens - counts - window + 1, 0) // block_size
        # Columns past a row's end repeat its last block: padding must not read another sequence's keys.
        columns = first[:, None] + np.arange(int((last - first).max()) + 1)
        blocks = self._tables[rows[:, None], np.minimum(columns, last[:, None])]
        query = np.minimum(np.arange(width), counts[:, None] - 1)
        key_at = (first * block_size)[:, None, None] + np.arange(columns.shape[1] * block_size)
        query_at = (lens - counts)[:, None, None] + query[:, :, None]
        hidden = key_at > query_at
        if window:
            hidden |= key_at <= query_at - window
        total, start, end = len(rows) * width, int(starts[0]), int(starts[-1] + counts[-1])
        is_whole = end - start == total == int(counts.sum())
        is_padded = int(counts.min()) < width
        return Group(
            start=start,
            end=end,
            num_rows=len(rows),
            width=width,
            tokens=None if is_whole else torch.from_numpy((starts[:, None] + query).reshape(-1)),
            kept=torch.from_numpy(np.flatnonzero(np.arange(width) < counts[:, None])) if is_padded else None,
            prefix=torch.from_numpy(self._tables[rows[0], :common].astype(np.int64)) if common else None,
            blocks=torch.from_numpy(blocks.reshape(-1).astype(np.int64)),
            bias=self._bias(hidden[:, :, None, :]),
        )

    def _chunk(self, row: int, window: int) -> Chunk:
        block_size = self._shape.block_size
        length, count, start = int(self._lens[row]), int(self._counts[row]), int(self._query_start[row])
        offset = length - count
        first = max(0, offset - window + 1) // block_size if window else 0
        blocks = self._tables[row, first : -(-length // block_size)]
        rows = max(1, min(TILE_ROWS, TILE_ELEMENTS // (self._shape.num_heads * length)))
        tiles = [
            self._tile(start, at, min(at + rows, count), offset, first * block_size, window)
            for at in range(0, count, rows)
        ]
        return Chunk(torch.from_numpy(blocks.astype(np.int64)), tuple(tiles))

    def _tile(self, start: int, begin: int, end: int, offset: int, origin: int, window: int) -> Tile:
        """Queries begin:end of a row whose first query is its offset-th token; gathered keys begin at token origin."""
        low = max(0, offset + begin - window + 1) if window else 0
        high = offset + end
        bias = None
        if end - begin > 1:
            key_at, query_at = np.arange(low, high), np.arange(offset + begin, offset + end)[:, None]
            hidden = key_at > query_at
            if window:
                hidden |= key_at <= query_at - window
            bias = self._bias(hidden[:, None, :])
        return Tile(start + begin, start + end, low - origin, high - origin, bias)

    def _bias(self, hidden: NDArray[np.bool_]) -> torch.Tensor:
        mask = torch.from_numpy(hidden)
        return torch.zeros(mask.shape, dtype=self._shape.dtype).masked_fill_(mask, float("-inf"))
