"""Hugging Face's own forward over T ragged tokens, its attention replaced by ours.

The path of every architecture without a layer walk, and the oracle of those with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from llm_ray.worker.attention.base import AttentionBackend, LayerAttention
from llm_ray.worker.linear import Linear, LinearBackend, RowLinear, VocabParallelHead
from llm_ray.worker.model_loader import is_row
from llm_ray.worker.parallel import TensorParallel
from llm_ray.worker.step_tensors import StepTensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION_NAME = "llm_ray"


@dataclass(slots=True)
class Context:
    """What the attention function needs of the step; every attention module of one model holds the same one.

    Without a backend the function only records each layer's shape (see _probe).
    """

    backend: AttentionBackend | None = None
    step: StepTensors | None = None
    found: dict[int, LayerAttention] | None = None


class HFForward:
    """The model of one rank. `attention` lists the layers' local heads; the KV cache is sized by it."""

    def __init__(self, model: PreTrainedModel, backend: LinearBackend, tp: TensorParallel) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION_NAME, _attention)
        # A name that transformers has no mask function for: it builds no masks.
        model.set_attn_implementation(ATTENTION_NAME)
        self.model = model
        self.context = Context()
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                module.llm_ray_context = self.context
        _replace_linears(model, backend, tp)
        self.attention = self._probe()

    def forward(self, step: StepTensors, backend: AttentionBackend | None) -> Tensor:
        """Logits [N, V] of step.sample_rows in the model's dtype; [0, V] on all ranks but the stage's first."""
        self.context.backend, self.context.step = backend, step
        return self._run(step.token_ids, step.positions, step.sample_rows)

    def _run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        output: Any = self.model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _probe(self) -> list[LayerAttention]:
        """Run one token and note what each layer asks of the attention: local heads, scale, window, softcap."""
        self.context.found = {}
        one = torch.zeros(1, dtype=torch.int64)
        self._run(one, one, one)
        found, self.context.found = self.context.found, None
        return [found[index] for index in range(len(found))]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Hugging Face's attention interface: query [1, H, T, D], key and value [1, KH, T, D] -> [1, T, H, D]."""
    context: Context = module.llm_ray_context  # type: ignore[assignment]
    layer: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    if context.found is not None:
        context.found[layer] = LayerAttention(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[2],
            scale=query.shape[2] ** -0.5 if scaling is None else float(scaling),
            sliding_window=int(sliding_window or 0),
            softcap=float(softcap or 0.0),
        )
        return out[None], None
    assert context.backend is not None
    assert context.step is not None
    context.backend.write(layer, key, value, context.step)
    context.backend.attend(layer, query, context.step, out)
    return out[None], None


def _replace_linears(model: PreTrainedModel, backend: LinearBackend, tp: TensorParallel) -> None:
    """Pack every linear layer, one at a time; its original is dropped. The head is cut over the vocabulary here."""
    head: Any = model.get_output_embeddings()
    model.set_output_embeddings(VocabParallelHead(head.weight, head.bias, backend, tp))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if is_row(child):
                setattr(parent, name, RowLinear(child.weight, child.bias, backend, tp))
            elif isinstance(child, nn.Linear) or type(child).__name__ == "LinearLayer":
                setattr(parent, name, Linear(child.weight, child.bias, backend))
