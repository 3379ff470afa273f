"""Paged attention in plain torch for CPUs: whole-block gathers, batched products, shared prefixes attended once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from llm_ray.errors import ConfigError
from llm_ray.worker.attention.base import AttentionStep, LayerAttention
from llm_ray.worker.attention.cpu_plan import GROUP_COST, Group, Plan, Planner, Shape, Tile


class TorchCpuAttention:
    """Pool per layer: [2 * num_kv_heads, num_blocks, block_size * head_dim], keys first.

    index_select along the blocks copies whole blocks and leaves what bmm wants: [2, num_kv_heads * rows, tokens, D].
    """

    name = "torch_cpu"

    def __init__(
        self,
        layers: Sequence[LayerAttention],
        num_blocks: int,
        dtype: torch.dtype,
        block_size: int,
        device: torch.device | str = "cpu",
        *,
        cascade: bool = True,
        group_cost: int = GROUP_COST,
    ) -> None:
        if torch.device(device).type != "cpu":
            raise ConfigError(f"attention_backend torch_cpu runs on cpu only, not on {device}: choose another one")
        self.block_size = block_size
        self._layers = tuple(layers)
        self._cascade = cascade
        # Zeroed because padding reads slots that were never written: 0 * NaN would spoil the sum.
        self._pools = [
            torch.zeros(2 * layer.num_kv_heads, num_blocks, block_size * layer.head_dim, dtype=dtype)
            for layer in self._layers
        ]
        self._slots = [
            pool.view(2 * layer.num_kv_heads, num_blocks * block_size, layer.head_dim)
            for pool, layer in zip(self._pools, self._layers, strict=True)
        ]
        self._shape = Shape(
            block_size=block_size,
            num_heads=max((layer.num_heads for layer in self._layers), default=1),
            kv_elements=max((layer.num_kv_heads * layer.head_dim for layer in self._layers), default=1),
            dtype=dtype,
            group_cost=group_cost,
        )
        # Half precision can overflow; an inf left in a freed block would reach the next sequence through padding.
        self._sanitise = dtype == torch.float16
        self._plans: dict[int, Plan] = {}
        self._max_len = 0
        self._scratch: dict[str, torch.Tensor] = {}

    def plan(self, step: AttentionStep) -> None:
        planner = Planner(step, self._shape, cascade=self._cascade)
        self._plans, self._max_len = {}, planner.max_len
        for layer in self._layers:
            window = self._effective_window(layer, planner.max_len)
            if window not in self._plans:
                self._plans[window] = planner.make(window)

    @staticmethod
    def _effective_window(layer: LayerAttention, max_len: int) -> int:
        return layer.sliding_window if 0 < layer.sliding_window < max_len else 0

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, step: AttentionStep) -> None:
        if self._sanitise:
            key, value = key.nan_to_num(0, 0, 0), value.nan_to_num(0, 0, 0)
        slots, heads = self._slots[layer], key.shape[1]
        both = _neighbours(key, value)
        if both is not None:
            slots.index_copy_(1, step.slot_mapping, both.transpose(0, 1))
        else:
            slots[:heads].index_copy_(1, step.slot_mapping, key.transpose(0, 1))
            slots[heads:].index_copy_(1, step.slot_mapping, value.transpose(0, 1))

    def attend(self, layer: int, query: torch.Tensor, step: AttentionStep, out: torch.Tensor) -> None:
        plan = self._plans[self._effective_window(self._layers[layer], self._max_len)]
        for group in plan.groups:
            self._attend_group(layer, group, query, out)
        for chunk in plan.chunks:
            keys, values = self._gather("own", layer, chunk.blocks, 1)
            for tile in chunk.tiles:
                self._attend_tile(layer, tile, query, keys, values, out)

    def copy_block(self, src: int, dst: int) -> None:
        for pool in self._pools:
            pool[:, dst].copy_(pool[:, src])

    def _gather(self, use: str, layer: int, blocks: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Keys and values [2, num_kv_heads * num_rows, tokens, head_dim] in scratch memory kept between calls."""
        pool, head_dim = self._pools[layer], self._layers[layer].head_dim
        shape = (pool.shape[0], len(blocks), pool.shape[2])
        needed = shape[0] * shape[1] * shape[2]
        scratch = self._scratch.get(use)
        if scratch is None or scratch.numel() < needed:
            scratch = self._scratch[use] = torch.empty(needed * 5 // 4, dtype=pool.dtype)
        out = scratch[:needed].view(shape)
        torch.index_select(pool, 1, blocks, out=out)
        return out.view(2, shape[0] // 2 * num_rows, len(blocks) // num_rows * self.block_size, head_dim)

    def _attend_tile(
        self, layer: int, tile: Tile, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        spec = self._layers[layer]
        kv_heads, head_dim, count = spec.num_kv_heads, spec.head_dim, tile.end - tile.start
        group = spec.num_heads // kv_heads
        keys, values = keys[:, tile.low : tile.high], values[:, tile.low : tile.high]
        if count == 1 and not spec.softcap:
            # One call instead of six small ones; a KV head's query heads take the place of query tokens.
            one = query[tile.start].reshape(1, kv_heads, group, head_dim)
            found = F.scaled_dot_product_attention(one, keys[None], values[None], scale=spec.scale)
            out[tile.start] = found.view(spec.num_heads, head_dim)
            return
        some = query[tile.start : tile.end].reshape(count, kv_heads, group, head_dim).transpose(0, 1) * spec.scale
        scores = torch.bmm(some.reshape(kv_heads, count * group, head_dim), keys.transpose(1, 2))
        scores = _softcap(scores, spec.softcap)
        if tile.bias is not None:
            scores.view(kv_heads, count, group, -1).add_(tile.bias)
        found = torch.bmm(scores.softmax(-1).to(values.dtype), values)
        out[tile.start : tile.end].view(count, kv_heads, group, head_dim).copy_(
            found.view(kv_heads, count, group, head_dim).transpose(0, 1)
        )

    def _attend_group(self, layer: int, group: Group, query: torch.Tensor, out: torch.Tensor) -> None:
        spec = self._layers[layer]
        kv_heads, head_dim, rows, width = spec.num_kv_heads, spec.head_dim, group.num_rows, group.width
        fan = width * (spec.num_heads // kv_heads)
        some = query[group.start : group.end] if group.tokens is None else query.index_select(0, group.tokens)
        some = some.reshape(rows, width, kv_heads, -1, head_dim).permute(2, 0, 1, 3, 4) * spec.scale
        some = some.contiguous()  # [kv_heads, rows, width, heads per kv head, head_dim]: serves both parts
        keys, values = self._gather("own", layer, group.blocks, rows)
        own = torch.bmm(some.view(kv_heads * rows, fan, head_dim), keys.transpose(1, 2))
        own = _softcap(own, spec.softcap)
        own.view(kv_heads, rows, width, -1, own.shape[-1]).add_(group.bias)
        if group.prefix is None:
            found = torch.bmm(own.softmax(-1).to(values.dtype), values)
        else:
            found = self._cascade_product(layer, group.prefix, some, own, values)
        ordered = found.view(kv_heads, rows * width, -1, head_dim).transpose(0, 1)
        if group.kept is not None:
            ordered = ordered.index_select(0, group.kept)
        if group.tokens is None:
            out[group.start : group.end].view(ordered.shape).copy_(ordered)
        else:
            tokens = group.tokens if group.kept is None else group.tokens.index_select(0, group.kept)
            out.index_copy_(0, tokens, ordered.reshape(-1, spec.num_heads, head_dim))

    def _cascade_product(
        self, layer: int, prefix: torch.Tensor, query: torch.Tensor, own: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """All rows' queries meet the shared prefix in one product; one softmax over both parts' scores joins them.

        query: [kv_heads, rows, width, heads per kv head, head_dim]; own: the masked scores of each row's own tokens.
        """
        spec = self._layers[layer]
        kv_heads, rows = query.shape[:2]
        keys, shared_values = self._gather("prefix", layer, prefix, 1)
        shared = torch.bmm(query.view(kv_heads, -1, spec.head_dim), keys.transpose(1, 2))
        shared = _softcap(shared, spec.softcap)
        both = torch.cat((shared, own.view(kv_heads, -1, own.shape[-1])), -1).softmax(-1).to(values.dtype)
        at = shared.shape[-1]
        found = torch.bmm(both[..., :at], shared_values)
        tail = both[..., at:].reshape(kv_heads * rows, -1, own.shape[-1])
        return found.view(kv_heads * rows, -1, spec.head_dim).add_(torch.bmm(tail, values))


def _neighbours(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """key and value [T, KH, D] as one view [T, 2 * KH, D] where they lie side by side in a fused product, else None."""
    tokens, heads, dim = key.shape
    is_side_by_side = (
        key.stride() == value.stride()
        and key.stride(1) == dim
        and key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        and value.storage_offset() == key.storage_offset() + heads * dim
    )
    return key.as_strided((tokens, 2 * heads, dim), key.stride()) if is_side_by_side else None


def _softcap(scores: torch.Tensor, cap: float) -> torch.Tensor:
    """Capped scores, in float32 whatever they came in; the scores themselves when there is no cap."""
    return scores.float().div_(cap).tanh_().mul_(cap) if cap else scores
