"""What a worker's layers ask of an attention implementation. Each implementation owns its KV pool and its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """One layer's attention as this rank holds it: local head counts, at least one of each.

    Token i attends token j when j <= i and, with a sliding_window of w tokens (0 is none), i - j < w.
    softcap c (0 is none) replaces each scaled score s by c * tanh(s / c).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int = 0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})")


class AttentionStep(Protocol):
    """The part of a step's tensors that attention reads: T tokens of S sequences, row after row.

    Row r owns tokens query_start_loc[r]:query_start_loc[r+1], its last ones of seq_lens[r] in all.
    runs are (first row, end row, common): neighbouring rows whose first `common` block ids are equal and full.
    """

    @property
    def slot_mapping(self) -> torch.Tensor: ...  # int64 [T]

    @property
    def query_start_loc(self) -> torch.Tensor: ...  # int32 [S + 1]

    @property
    def seq_lens(self) -> torch.Tensor: ...  # int32 [S]

    @property
    def block_tables(self) -> torch.Tensor: ...  # int32 [S, max_blocks], padded with 0

    @property
    def runs(self) -> Sequence[tuple[int, int, int]]: ...


class AttentionBackend(Protocol):
    """Calls come in this order: plan once a step; then for each layer write all its tokens, then attend."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    def plan(self, step: AttentionStep) -> None:
        """Prepare what all layers of this step share."""
        ...

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, step: AttentionStep) -> None:
        """Store key and value [T, num_kv_heads, head_dim] (any strides) in the step's slots."""
        ...

    def attend(self, layer: int, query: torch.Tensor, step: AttentionStep, out: torch.Tensor) -> None:
        """Fill every row of out [T, num_heads, head_dim] from query of the same shape (any strides)."""
        ...

    def copy_block(self, src: int, dst: int) -> None:
        """Copy one block's keys and values in all layers."""
        ...


def kv_bytes_per_block(layers: Sequence[LayerAttention], block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one KV block takes over all of this rank's layers."""
    elements = sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers)
    return elements * block_size * dtype.itemsize
