"""How a backend is chosen, and that its self-test can fail."""

from __future__ import annotations

import logging

import pytest
import torch

from llm_ray.errors import ConfigError
from llm_ray.worker import attention
from llm_ray.worker.attention import LayerAttention, kv_bytes_per_block, make_backend
from llm_ray.worker.attention.torch_cpu import TorchCpuAttention

LAYERS = [LayerAttention(9, 3, 64, 0.125)] * 30 + [LayerAttention(4, 1, 16, 0.3, 4096, 50.0)]


def make(name: str = "auto", dtype: torch.dtype = torch.float32, block_size: int = 16, device: str = "cpu"):
    return make_backend(name, layers=LAYERS, num_blocks=8, dtype=dtype, block_size=block_size, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [1, 2, 16, 32])
def test_auto_takes_torch_cpu_after_its_self_test_and_says_so(dtype, block_size, caplog):
    with caplog.at_level(logging.INFO):
        backend = make(dtype=dtype, block_size=block_size)
    assert (backend.name, backend.block_size) == ("torch_cpu", block_size)
    assert "attention_backend name=torch_cpu asked=auto reason=self_test_passed" in caplog.text


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"attention_backend \('flash'\) must be one of auto, torch_cpu"):
        make("flash")


def test_a_device_that_torch_cpu_cannot_serve_is_refused_by_name():
    with pytest.raises(ConfigError, match="torch_cpu runs on cpu only, not on cuda"):
        make("torch_cpu", device="cuda")


def leaves_a_row_unwritten(self, layer, query, step, out):
    kept = out[-1].clone()
    ATTEND(self, layer, query, step, out)
    out[-1] = kept


def ignores_the_window(self, layer, max_len):
    return 0


def forgets_to_write(self, layer, key, value, step):
    if len(key) > 100:
        WRITE(self, layer, key + 0.5, value, step)


ATTEND, WRITE = TorchCpuAttention.attend, TorchCpuAttention.write


@pytest.mark.parametrize(
    ("method", "broken"),
    [("attend", leaves_a_row_unwritten), ("_effective_window", ignores_the_window), ("write", forgets_to_write)],
)
def test_a_wrong_backend_fails_its_self_test_and_is_named(monkeypatch, method, broken):
    monkeypatch.setattr(TorchCpuAttention, method, broken)
    with pytest.raises(ConfigError, match=r"no attention backend runs here; torch_cpu: .* failed its self-test"):
        make()


def test_auto_falls_back_to_the_next_backend_and_says_why(monkeypatch, caplog):
    class Broken(TorchCpuAttention):
        name = "broken"
        attend = leaves_a_row_unwritten

    monkeypatch.setattr(attention, "CANDIDATES", (("broken", Broken), ("torch_cpu", TorchCpuAttention)))
    backend = make()
    assert backend.name == "torch_cpu"
    assert "attention_backend_refused name=broken reason='attention backend broken failed its self-test" in caplog.text


def test_kv_bytes_per_block_counts_what_the_pool_really_takes():
    layers = [LayerAttention(9, 3, 64, 0.125), LayerAttention(6, 2, 32, 0.2)]
    backend = TorchCpuAttention(layers, 10, torch.bfloat16, 16)
    held = sum(pool.numel() * pool.element_size() for pool in backend._pools)
    assert held == 10 * kv_bytes_per_block(layers, 16, torch.bfloat16)
