"""Packed linear layers against torch's own, whole and cut over two ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from llm_ray.errors import ConfigError
from llm_ray.worker.linear import Linear, RowLinear, VocabParallelHead, choose_backend
from llm_ray.worker.parallel import TensorParallel

CPU = torch.device("cpu")


class Recorded(TensorParallel):
    """One of two ranks; notes what it would exchange."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, 2)
        self.sent: list[Tensor] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        self.sent.append(x)
        return x

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor | None:
        self.sent.append(x)
        return x.new_zeros(x.shape[0], sum(widths)) if self.rank == 0 else None


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 33])
@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_weights_give_what_plain_ones_give(dtype: torch.dtype, rows: int, has_bias: bool) -> None:
    weight, x = draw(37, 24, dtype=dtype), draw(rows, 24, dtype=dtype)
    bias = draw(37, dtype=dtype) if has_bias else None
    summand = draw(rows, 37, dtype=dtype)
    packed = Linear(weight, bias, "packed")
    expected = F.linear(x, weight, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert packed.packed
    torch.testing.assert_close(packed(x), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(packed.plus(x, summand), expected + summand, atol=tolerance, rtol=2 * tolerance)


@pytest.mark.parametrize("backend", ["packed", "plain"])
def test_a_row_layer_adds_bias_and_residual_once(backend: str) -> None:
    weight, bias, x, residual = draw(20, 30), draw(20), draw(4, 30), draw(4, 20)
    ranks = [Recorded(0), Recorded(1)]
    for tp, part in zip(ranks, (slice(0, 18), slice(18, 30)), strict=True):
        layer = RowLinear(weight[:, part], bias, backend, tp)  # type: ignore[arg-type]
        layer(x[:, part])
        layer.plus(x[:, part], residual)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(ranks[0].sent[0] + ranks[1].sent[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ranks[0].sent[1] + ranks[1].sent[1], expected + residual, atol=1e-5, rtol=1e-5)


def test_a_rank_without_heads_contributes_nothing() -> None:
    tp = Recorded(1)
    layer = RowLinear(draw(20, 0), draw(20), "packed", tp)
    assert layer(draw(3, 0)).abs().sum() == 0
    assert Linear(draw(0, 20), None, "packed")(draw(3, 20)).shape == (3, 0)


def test_the_head_is_cut_over_the_vocabulary() -> None:
    weight, bias, x = draw(41, 16), draw(41), draw(3, 16)
    ranks = [Recorded(0), Recorded(1)]
    shapes = [VocabParallelHead(weight, bias, "packed", tp)(x).shape for tp in ranks]
    logits = torch.cat([ranks[0].sent[0], ranks[1].sent[0]], dim=1)
    torch.testing.assert_close(logits, F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
    assert shapes == [(3, 41), (0, 41)]


def test_packing_is_chosen_where_it_works() -> None:
    assert choose_backend("auto", torch.float32, CPU) == "packed"
    assert choose_backend("auto", torch.float16, CPU) == "plain"
    assert choose_backend("auto", torch.bfloat16, torch.device("cuda")) == "plain"
    assert choose_backend("plain", torch.float32, CPU) == "plain"
    with pytest.raises(ConfigError, match=r"linear_backend \(packed\) needs oneDNN"):
        choose_backend("packed", torch.float16, CPU)
