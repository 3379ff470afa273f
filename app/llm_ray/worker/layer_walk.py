"""A decoder's layers walked over T ragged tokens with our own kernels: the fast path of the Llama-like families.

Takes the weights out of a (sharded) Hugging Face module, layer by layer, and packs them. Knows neither sequences nor
blocks; the attention backend does.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_ray.worker.architectures import Walk
from llm_ray.worker.attention.base import AttentionBackend, LayerAttention
from llm_ray.worker.linear import Linear, LinearBackend, RowLinear, VocabParallelHead
from llm_ray.worker.parallel import TensorParallel
from llm_ray.worker.step_tensors import StepTensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"


class Norm:
    """RMSNorm over the last dimension. With an offset, weight and product are float32, as Gemma has it."""

    def __init__(self, module: Any, offset: float) -> None:
        weight: Tensor = module.weight.detach()
        self.eps = float(module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)
        self.weight = weight.float() + offset if offset else weight.clone()
        self.shape = tuple(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.dtype == x.dtype:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        return F.rms_norm(x.float(), self.shape, self.weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class WalkLayer:
    """One layer's packed weights; qkv and gate_up hold their projections one below the other.

    attention is None on a rank without heads: there are more ranks than KV heads.
    """

    layer_type: str
    attention: LayerAttention | None
    input_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    o: RowLinear
    attention_post_norm: Norm | None
    mlp_norm: Norm
    gate_up: Linear
    down: RowLinear
    mlp_post_norm: Norm | None


class LayerWalk:
    """The model of one rank. `attention` lists the layers' local heads and sizes the KV cache; a rank without has none.

    Empties `model` of its layers while it packs them, so at most one layer exists twice.
    """

    def __init__(self, model: PreTrainedModel, walk: Walk, backend: LinearBackend, tp: TensorParallel) -> None:
        config: Any = model.config
        body: Any = model.model
        head: Any = model.get_output_embeddings()
        self.activation = body.layers[0].mlp.act_fn
        self.layers = list(_take_layers(body, config, walk, backend, tp))
        self.attention = [layer.attention for layer in self.layers if layer.attention is not None]
        self.embedding = body.embed_tokens
        self.rotary = body.rotary_emb
        self.norm = Norm(body.norm, walk.norm_offset)
        self.head = VocabParallelHead(head.weight, head.bias, backend, tp)
        self.layer_types = sorted({layer.layer_type for layer in self.layers})
        self.has_rope_per_type = "layer_type" in inspect.signature(self.rotary.forward).parameters
        self.embedding_multiplier = float(getattr(config, "embedding_multiplier", 1.0))
        self.residual_multiplier = float(getattr(config, "residual_multiplier", 1.0))
        self.logits_divisor = float(getattr(config, "logits_scaling", 1.0))
        self.logits_softcap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
        self._out = torch.empty(0, dtype=model.dtype)

    def forward(self, step: StepTensors, backend: AttentionBackend | None) -> Tensor:
        """Logits [N, V] of step.sample_rows in the model's dtype; [0, V] on all ranks but the stage's first."""
        x: Tensor = self.embedding(step.token_ids)
        if self.embedding_multiplier != 1.0:
            x = x * self.embedding_multiplier
        ropes = {kind: self._rope(x, step.positions, kind) for kind in self.layer_types}
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            attended = self._attend(index, layer, x, ropes[layer.layer_type], step, backend)
            if index == last:  # all keys are written; from here on only sampled rows matter
                attended, x = attended.index_select(0, step.sample_rows), x.index_select(0, step.sample_rows)
                if len(x) == 0:
                    return x.new_empty(0, self.head.vocab_size)
            x = self._finish(layer, attended, x)
        logits: Tensor = self.head(self.norm(x))
        if self.logits_divisor != 1.0:
            logits = logits / self.logits_divisor
        if self.logits_softcap:
            logits = torch.tanh(logits / self.logits_softcap) * self.logits_softcap
        return logits

    def _attend(
        self,
        index: int,
        layer: WalkLayer,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        step: StepTensors,
        backend: AttentionBackend | None,
    ) -> Tensor:
        """Attention of one layer before the output projection: [T, H * D]."""
        spec = layer.attention
        if spec is None or backend is None:
            return x.new_empty(len(x), 0)
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        qkv = layer.qkv(layer.input_norm(x))
        out = self._output(len(x), heads * dim)
        rotated = qkv[:, : (heads + kv_heads) * dim].view(-1, heads + kv_heads, dim)
        value = qkv[:, (heads + kv_heads) * dim :].view(-1, kv_heads, dim)
        query, key = rotated[:, :heads], rotated[:, heads:]
        if layer.q_norm is None or layer.k_norm is None:
            rotated.copy_(_rotate(rotated, *rope))
        else:
            query, key = _rotate(layer.q_norm(query), *rope), _rotate(layer.k_norm(key), *rope)
        backend.write(index, key, value, step)
        backend.attend(index, query, step, out.view(-1, heads, dim))
        return out

    def _finish(self, layer: WalkLayer, attended: Tensor, x: Tensor) -> Tensor:
        """Output projection, residual, MLP, residual: [N, hidden]."""
        if layer.attention_post_norm is None and self.residual_multiplier == 1.0:
            x = layer.o.plus(attended, x)
        else:
            x = x + self._branch(layer.o(attended), layer.attention_post_norm)
        gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
        y = self.activation(gate).mul_(up)
        if layer.mlp_post_norm is None and self.residual_multiplier == 1.0:
            return layer.down.plus(y, x)
        return x + self._branch(layer.down(y), layer.mlp_post_norm)

    def _branch(self, y: Tensor, post_norm: Norm | None) -> Tensor:
        if post_norm is not None:
            y = post_norm(y)
        return y if self.residual_multiplier == 1.0 else y * self.residual_multiplier

    def _rope(self, x: Tensor, positions: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        """cos and sign-adjusted sin, both [T, 1, D]."""
        args = (layer_type,) if self.has_rope_per_type else ()
        cos, sin = self.rotary(x[None], positions[None], *args)
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos[0, :, None], sin[0, :, None]

    def _output(self, rows: int, width: int) -> Tensor:
        """Attention's output; one buffer serves all layers."""
        if self._out.numel() < rows * width:
            self._out = torch.empty(rows * width, dtype=self._out.dtype)
        return self._out[: rows * width].view(rows, width)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, heads, D]; sin's first half is negated already."""
    rows, heads, dim = x.shape
    swapped = x.reshape(rows, heads, 2, dim // 2).flip(2).view(rows, heads, dim)
    return torch.addcmul(x * cos, swapped, sin)


def _take_layers(body: Any, config: Any, walk: Walk, backend: LinearBackend, tp: TensorParallel) -> Iterator[WalkLayer]:
    for index in range(len(body.layers)):
        yield _take_layer(body.layers[index], config, _layer_type(config, index, walk), walk, backend, tp)
        body.layers[index] = nn.Identity()


def _layer_type(config: Any, index: int, walk: Walk) -> str:
    if walk.window == "by_layer_type":
        return str(config.layer_types[index])
    return SLIDING if walk.window == "everywhere" and config.sliding_window else FULL


def _take_layer(
    layer: Any, config: Any, layer_type: str, walk: Walk, backend: LinearBackend, tp: TensorParallel
) -> WalkLayer:
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    dim = int(attention.head_dim)
    heads, kv_heads = (part.weight.shape[0] // dim for part in parts[:2])
    spec = kv_heads and LayerAttention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=float(attention.scaling),
        sliding_window=int(config.sliding_window) if layer_type == SLIDING else 0,
        softcap=float(config.attn_logit_softcapping or 0.0) if walk.has_attention_softcap else 0.0,
    )

    def norm(module: Any) -> Norm:
        return Norm(module, walk.norm_offset)

    has_qk_norm = hasattr(attention, "q_norm")
    return WalkLayer(
        layer_type=layer_type,
        attention=spec or None,
        input_norm=norm(layer.input_layernorm),
        qkv=_merge(parts, backend),
        q_norm=norm(attention.q_norm) if has_qk_norm else None,
        k_norm=norm(attention.k_norm) if has_qk_norm else None,
        o=RowLinear(attention.o_proj.weight, attention.o_proj.bias, backend, tp),
        attention_post_norm=norm(layer.post_attention_layernorm) if walk.has_post_norms else None,
        mlp_norm=norm(layer.pre_feedforward_layernorm if walk.has_post_norms else layer.post_attention_layernorm),
        gate_up=_merge((mlp.gate_proj, mlp.up_proj), backend),
        down=RowLinear(mlp.down_proj.weight, mlp.down_proj.bias, backend, tp),
        mlp_post_norm=norm(layer.post_feedforward_layernorm) if walk.has_post_norms else None,
    )


def _merge(parts: Sequence[Any], backend: LinearBackend) -> Linear:
    """Column layers with the same input as one: a product over more columns is the faster one."""
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return Linear(torch.cat([part.weight for part in parts]), bias, backend)
