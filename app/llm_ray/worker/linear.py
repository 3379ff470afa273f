"""Linear layers over one rank's shard: weights packed once for oneDNN where that exists, plain torch elsewhere."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_ray.config import LinearBackendName
from llm_ray.errors import ConfigError
from llm_ray.worker.parallel import TensorParallel

LinearBackend = Literal["packed", "plain"]

PACKED_DTYPES = (torch.float32, torch.bfloat16)


def choose_backend(name: LinearBackendName, dtype: torch.dtype, device: torch.device) -> LinearBackend:
    """Resolve `auto`. Raises ConfigError when packed weights are asked for but cannot be."""
    can_pack = (
        device.type == "cpu"
        and dtype in PACKED_DTYPES
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
    if name == "packed" and not can_pack:
        raise ConfigError(
            f"linear_backend (packed) needs oneDNN, a CPU and float32 or bfloat16, not {dtype} on {device.type}: "
            "use linear_backend auto or plain"
        )
    return "packed" if can_pack and name != "plain" else "plain"


class Linear(nn.Module):
    """y = x W^T + b for x [T, K] (or any leading shape), W [N, K].

    The packed weight is opaque, so it is a plain attribute, not a parameter. The original is not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, backend: LinearBackend) -> None:
        super().__init__()
        weight = weight.detach()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach()
        self.packed = backend == "packed" and weight.numel() > 0
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        self.weight = weight
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            y: Tensor = self._unary(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)

    def plus(self, x: Tensor, summand: Tensor) -> Tensor:
        """x W^T + b + summand."""
        if self.packed:
            y: Tensor = self._binary(x, summand, self.weight, self.bias, "add")
            return y
        return F.linear(x, self.weight, self.bias).add_(summand)


class RowLinear(Linear):
    """Holds a slice of the input features; the ranks' partial products are summed.

    Bias and summand are whole on every rank, so the first rank alone adds them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, backend: LinearBackend, tp: TensorParallel) -> None:
        super().__init__(weight, bias if tp.rank == 0 else None, backend)
        self.tp = tp

    def forward(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(super().forward(x))

    def plus(self, x: Tensor, summand: Tensor) -> Tensor:
        y = super().plus(x, summand) if self.tp.rank == 0 else super().forward(x)
        return self.tp.all_reduce(y)


class VocabParallelHead(Linear):
    """The output head, its vocabulary cut evenly over the ranks, tied to the embedding or not.

    The first rank gets all logits [..., N, V]; the others get [..., 0, V], which flows through whatever follows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, backend: LinearBackend, tp: TensorParallel) -> None:
        vocab_size = weight.shape[0]
        cuts = [vocab_size * i // tp.size for i in range(tp.size + 1)]
        own = slice(cuts[tp.rank], cuts[tp.rank + 1])
        super().__init__(weight[own], None if bias is None else bias[own].clone(), backend)
        self.tp, self.vocab_size = tp, vocab_size
        self.widths = [end - start for start, end in pairwise(cuts)]

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.tp.size == 1:
            return y
        if y.numel() > 0:
            gathered = self.tp.gather_columns(y.view(-1, self.out_features), self.widths)
            if gathered is not None:
                return gathered.view(*x.shape[:-1], self.vocab_size)
        return y.new_empty(*x.shape[:-2], 0, self.vocab_size)
