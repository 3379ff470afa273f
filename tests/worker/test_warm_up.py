"""A model that cannot be trusted is found before its rank calls itself ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_ray.config import EngineConfig
from llm_ray.errors import ConfigError, ExecutorError
from llm_ray.executor.local import LocalExecutor
from llm_ray.worker.layer_walk import LayerWalk
from tests.worker.conftest import Reference

Tiny = Callable[[str], Reference]
ROPE = LayerWalk._rope


def executor(path: Path, **settings: int) -> LocalExecutor:
    return LocalExecutor(EngineConfig(model=str(path), block_size=8, **({"num_blocks": 8} | settings)))


def positions_within_the_step(self: LayerWalk, x: torch.Tensor, positions: torch.Tensor, kind: str) -> object:
    return ROPE(self, x, positions - positions.min(), kind)


def test_a_decode_that_disagrees_with_the_prefill_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerWalk, "_rope", positions_within_the_step)
    with pytest.raises(ExecutorError, match=r"warm-up: decode and prefill differ by .* torch_cpu is wrong"):
        executor(tiny("llama").path).start()


def test_a_damaged_checkpoint_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    for file in tiny("llama").path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExecutorError, match="logits that are not finite"):
        executor(tmp_path).start()


def test_a_cache_of_less_than_two_blocks_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"raise num_blocks \(0\) or kv_cache_bytes \(5000\)"):
        executor(tiny("llama").path, num_blocks=0, kv_cache_bytes=5000).start()


def test_a_cache_larger_than_the_memory_is_refused_by_its_settings(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"cannot be allocated .*: lower num_blocks \(1099511627776\)"):
        executor(tiny("llama").path, num_blocks=1 << 40).start()


def test_one_token_per_step_is_enough_to_start(tiny: Tiny) -> None:
    local = executor(tiny("llama").path, max_num_seqs=1, max_num_batched_tokens=1)
    assert local.start().num_blocks == 8
    local.shutdown()


def test_the_cache_is_sized_by_the_bytes_of_all_layers(tiny: Tiny) -> None:
    local = executor(tiny("llama").path, num_blocks=0, kv_cache_bytes=1_000_000)
    block_bytes = 3 * 2 * 3 * 16 * 8 * 4  # layers, keys and values, KV heads, head dim, tokens, float32
    assert local.start().num_blocks == 1_000_000 // block_bytes
    local.shutdown()


def test_an_executor_that_was_not_started_says_so(tiny: Tiny) -> None:
    local = executor(tiny("llama").path)
    with pytest.raises(ExecutorError, match="call start first"):
        local.check()
    with pytest.raises(ConfigError, match=r"tensor_parallel_size \(2\) must be 1"):
        LocalExecutor(EngineConfig(tensor_parallel_size=2))
