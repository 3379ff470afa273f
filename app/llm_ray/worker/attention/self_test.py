"""The start-up check of an attention backend: a small ragged step against dense float32 softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from llm_ray.errors import ConfigError
from llm_ray.worker.attention.base import AttentionBackend, LayerAttention

BackendFactory = Callable[[Sequence[LayerAttention], int], AttentionBackend]
"""Makes a backend for the given layers and number of blocks."""

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
NUM_BLOCKS = 24


@dataclass(frozen=True, slots=True)
class _Step:
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    runs: list[tuple[int, int, int]]


def self_test(factory: BackendFactory, layers: Sequence[LayerAttention], dtype: torch.dtype) -> None:
    """Run each distinct kind of layer once. Raises ConfigError naming the backend and the failure.

    Windows are cut to 7 tokens, so that they bite on the test's short sequences.
    """
    kinds = list(dict.fromkeys(replace(one, sliding_window=min(one.sliding_window, 7)) for one in layers))
    backend = factory(kinds, NUM_BLOCKS)
    generator = torch.Generator().manual_seed(0)
    step = _make_step(backend.block_size)
    num_slots = NUM_BLOCKS * backend.block_size
    every_slot = replace(step, slot_mapping=torch.arange(num_slots))
    for layer, kind in enumerate(kinds):
        stored = torch.randn(2, num_slots, kind.num_kv_heads, kind.head_dim, generator=generator).to(dtype)
        query = torch.randn(len(step.slot_mapping), kind.num_heads, kind.head_dim, generator=generator).to(dtype)
        out = torch.full_like(query, float("nan"))
        backend.write(layer, stored[0], stored[1], every_slot)
        backend.plan(step)
        backend.write(layer, stored[0, step.slot_mapping], stored[1, step.slot_mapping], step)
        backend.attend(layer, query, step, out)
        error = (out.float() - _reference(kind, query, stored, step, backend.block_size)).abs().max().item()
        if not error <= TOLERANCE[dtype]:  # NaN, an unwritten row, must fail too
            raise ConfigError(
                f"attention backend {backend.name} failed its self-test: error {error:.2e} above "
                f"{TOLERANCE[dtype]:.0e} for {kind} in {dtype}; choose another attention_backend"
            )


def _make_step(size: int) -> _Step:
    """Two decode rows behind a shared block, a chunk with cached tokens, a whole prompt; blocks out of order."""
    lens, counts = [size + 3, 2 * size + 1, size + 5, size], [1, 1, 4, size]
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
    shared = order.pop()
    tables = torch.zeros(4, max(-(-length // size) for length in lens), dtype=torch.int32)
    slots = []
    for row, (length, count) in enumerate(zip(lens, counts, strict=True)):
        blocks = [order.pop() for _ in range(-(-length // size))]
        if row < 2:
            blocks[0] = shared
        tables[row, : len(blocks)] = torch.tensor(blocks)
        slots += [blocks[at // size] * size + at % size for at in range(length - count, length)]
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    return _Step(torch.tensor(slots), starts, torch.tensor(lens, dtype=torch.int32), tables, [(0, 2, 1)])


def _reference(
    kind: LayerAttention, query: torch.Tensor, stored: torch.Tensor, step: _Step, block_size: int
) -> torch.Tensor:
    rows = []
    for row, length in enumerate(step.seq_lens.tolist()):
        start, end = step.query_start_loc[row : row + 2].tolist()
        at = torch.arange(length)
        slots = step.block_tables[row].long()[at // block_size] * block_size + at % block_size
        keys, values = stored[:, slots].float().repeat_interleave(kind.num_heads // kind.num_kv_heads, dim=2)
        scores = torch.einsum("qhd,khd->hqk", query[start:end].float(), keys) * kind.scale
        if kind.softcap:
            scores = torch.tanh(scores / kind.softcap) * kind.softcap
        behind = torch.arange(length - (end - start), length)[:, None] - at
        hidden = (behind < 0) | (behind >= (kind.sliding_window or length))
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(rows)
