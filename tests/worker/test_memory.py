"""What a rank keeps in memory of its own: its shard, and nothing that the checkpoint's files hold already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llm_ray.config import EngineConfig
from llm_ray.executor.local import LocalExecutor
from tests.support.process_executor import ProcessExecutor, RankProcesses
from tests.worker.conftest import Reference

MIB = 1 << 20
EMBEDDING_BYTES = 49152 * 576 * 4
"""SmolLM2's, in float32: it stays in the mapped file."""


def test_another_dtype_than_the_files_is_converted(tiny: Callable[[str], Reference]) -> None:
    path = str(tiny("gemma2").path)
    weight_bytes = []
    for dtype in ("auto", "bfloat16"):
        config = EngineConfig(model=path, dtype=dtype, num_blocks=8)  # type: ignore[arg-type]
        executor = LocalExecutor(config)
        weight_bytes.append(executor.start().ranks[0].weight_bytes)
        executor.shutdown()
    assert weight_bytes[0] == 2 * weight_bytes[1]


def test_a_rank_holds_its_shard_and_no_copy_of_the_model(
    smollm2: Path, tiny: Callable[[str], Reference], ranks: RankProcesses, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):  # no tokenizer: rank 0 would load it beside the weights
        (tmp_path / name).symlink_to(smollm2 / name)

    def load(path: Path) -> tuple[list[int], list[int]]:
        """Each rank's weight bytes and private bytes once it is ready."""
        executor = ProcessExecutor(EngineConfig(model=str(path), tensor_parallel_size=2, num_blocks=2), ranks)
        try:
            info = executor.start()
            return [rank.weight_bytes for rank in info.ranks], ranks.call("private_bytes")
        finally:
            executor.shutdown()

    _, before = load(tiny("llama").path)  # everything is imported by now
    weights, after = load(tmp_path)
    for rank in range(2):
        own = weights[rank] - EMBEDDING_BYTES
        assert own < after[rank] - before[rank] < 1.15 * own + 16 * MIB
