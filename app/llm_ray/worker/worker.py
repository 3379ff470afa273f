"""One rank: joins the group, loads its shard, executes steps. Its host (a Ray actor, this process) drives it."""

from __future__ import annotations

import gc
import os
import platform
import time

import torch

from llm_ray.config import EngineConfig
from llm_ray.engine.step import RankInfo, StepPlan, StepResult
from llm_ray.errors import ExecutorError
from llm_ray.worker import heap, parallel, warm_up
from llm_ray.worker.model_runner import ModelRunner
from llm_ray.worker.parallel import Rank
from llm_ray.worker.sampler import Sampler


class Worker:
    """Calls come in this order: load, cache_blocks, init_cache, warm_up, then steps, then shutdown.

    Every rank makes each call; load, cache_blocks, warm_up and step wait for the others. Any exception means that the
    group is unusable, because the other ranks may be waiting inside a collective.
    """

    def __init__(self, config: EngineConfig, rank: Rank) -> None:
        self.config, self.rank = config, rank
        self._runner: ModelRunner | None = None
        self._sampler: Sampler | None = None

    @property
    def runner(self) -> ModelRunner:
        if self._runner is None:
            raise ExecutorError(f"rank {self.rank.rank} has no model: call load first")
        return self._runner

    @property
    def max_model_len(self) -> int:
        return self.runner.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.runner.vocab_size

    def load(self, master_addr: str, master_port: int) -> RankInfo:
        """Join the group and load this rank's shard. Raises ConfigError or UnsupportedModelError."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, int(self.config.num_cpus_per_rank)))
        tp = parallel.init_group(
            self.rank,
            master_addr,
            master_port,
            start_timeout_s=self.config.start_timeout_s,
            step_timeout_s=self.config.step_timeout_s,
        )
        self._runner = ModelRunner(self.config, self.rank, tp)
        if self.rank.samples:
            self._sampler = Sampler(self._runner.vocab_size, self.config.model, self.config.seed)
        gc.collect()
        heap.trim()
        parallel.barrier(self.rank)
        return self.info()

    def info(self) -> RankInfo:
        return RankInfo(
            rank=self.rank.rank,
            pp_rank=self.rank.pp_rank,
            tp_rank=self.rank.tp_rank,
            pid=os.getpid(),
            node=platform.node(),
            num_parameters=self.runner.num_parameters,
            weight_bytes=self.runner.weight_bytes,
            attention_backend=self.runner.attention_backend,
            linear_backend=self.runner.linear_backend,
        )

    def cache_blocks(self) -> int:
        """KV blocks that fit this rank; the executor takes the least over all ranks."""
        return self.runner.num_cache_blocks()

    def init_cache(self, num_blocks: int) -> None:
        self.runner.init_cache(num_blocks)
        heap.trim()
        heap.keep()

    def warm_up(self) -> None:
        """Run a prefill and a decode step, and compare. Raises ExecutorError when they disagree."""
        warm_up.run(self.runner)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult | None:
        """Execute one step; only the sampling rank has a result."""
        start = time.perf_counter()
        sampler = self._sampler
        if sampler is not None:  # first, so that grammars compile while the model runs
            for seq_id in plan.finished:
                sampler.remove(seq_id)
            for sequence in plan.new:
                sampler.add(sequence)
        step, logits = self.runner.step(plan)
        if sampler is None:
            return None
        tokens = sampler.sample(logits, step.sample_seq_ids) if step.sample_seq_ids else []
        return StepResult(plan.step_id, tokens, time.perf_counter() - start)

    def shutdown(self) -> None:
        """Free the model and leave the group. May be called more than once."""
        self._runner = self._sampler = None
        parallel.close_group(self.rank)
