"""The model of one rank and its KV cache: runs a step's forward pass. Knows no sampling and no transport."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_ray.config import EngineConfig
from llm_ray.engine.step import StepPlan
from llm_ray.errors import ConfigError
from llm_ray.worker import model_loader
from llm_ray.worker.attention import kv_bytes_per_block, make_backend
from llm_ray.worker.attention.base import AttentionBackend
from llm_ray.worker.hf_forward import HFForward
from llm_ray.worker.layer_walk import LayerWalk
from llm_ray.worker.linear import choose_backend
from llm_ray.worker.parallel import Rank, TensorParallel
from llm_ray.worker.step_tensors import StepTensors, build


class ModelRunner:
    """Loads, shards and packs on construction; `init_cache` must come before `step`."""

    def __init__(self, config: EngineConfig, rank: Rank, tp: TensorParallel) -> None:
        shard = model_loader.load_shard(config, rank, tp)
        self.config, self.tp = config, tp
        self.device = torch.device("cpu")
        self.dtype: torch.dtype = shard.model.dtype
        self.linear_backend = choose_backend(config.linear_backend, self.dtype, self.device)
        self.num_parameters, self.weight_bytes = shard.num_parameters, shard.weight_bytes
        self.max_model_len = model_loader.max_model_len(config, shard.model.config)
        self.vocab_size = int(shard.model.get_output_embeddings().weight.shape[0])
        self.attention: AttentionBackend | None = None
        walk = shard.architecture.walk if config.use_layer_walk else None
        self.forward: LayerWalk | HFForward
        if walk is None:
            self.forward = HFForward(shard.model, self.linear_backend, tp)
        else:
            self.forward = LayerWalk(shard.model, walk, self.linear_backend, tp)

    @property
    def attention_backend(self) -> str:
        return self.attention.name if self.attention is not None else "none"

    def num_cache_blocks(self) -> int:
        """Blocks that the settings allow. A stage's ranks call this together. Raises ConfigError when too few fit."""
        own_bytes = kv_bytes_per_block(self.forward.attention, self.config.block_size, self.dtype)
        all_bytes = self.tp.sum(own_bytes)
        num_blocks = self.config.num_blocks or self.config.kv_cache_bytes // all_bytes
        if num_blocks < 2:
            raise ConfigError(
                f"the KV cache ({num_blocks} blocks of {all_bytes} bytes) must have at least 2 blocks: "
                f"raise num_blocks ({self.config.num_blocks}) or kv_cache_bytes ({self.config.kv_cache_bytes})"
            )
        return num_blocks

    def init_cache(self, num_blocks: int) -> None:
        """Allocate the KV pool; the ids of its blocks are 0 to num_blocks - 1. Raises ConfigError if too large."""
        layers = self.forward.attention
        if not layers:  # a rank without heads
            return
        try:
            self.attention = make_backend(
                self.config.attention_backend,
                num_blocks=num_blocks,
                layers=layers,
                dtype=self.dtype,
                block_size=self.config.block_size,
                device=self.device,
            )
        except RuntimeError as error:
            raise ConfigError(
                f"a KV cache of {num_blocks} blocks cannot be allocated ({str(error).splitlines()[0][:200]}): "
                f"lower num_blocks ({self.config.num_blocks}) or kv_cache_bytes ({self.config.kv_cache_bytes})"
            ) from error

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> tuple[StepTensors, Tensor]:
        """Run one pass. Returns the step's tensors and float32 logits [N, V] of its sample_rows.

        The logits have no rows on any rank but the stage's first.
        """
        step = build(plan, self.config.block_size, self.device)
        if self.attention is not None:
            self.attention.plan(step)
        logits = self.forward.forward(step, self.attention)
        return step, logits.float()
