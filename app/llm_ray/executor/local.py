"""The whole model in this process: one rank, no transport. For tests, benchmarks and the smallest deployments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llm_ray.config import EngineConfig
from llm_ray.engine.step import ExecutorInfo, StepPlan, StepResult
from llm_ray.errors import ConfigError, ExecutorError, LLMRayError

if TYPE_CHECKING:
    from llm_ray.worker.worker import Worker


class LocalExecutor:
    """An `Executor` whose steps run inside `submit`."""

    max_in_flight = 1

    def __init__(self, config: EngineConfig) -> None:
        if config.world_size != 1:
            raise ConfigError(f"tensor_parallel_size ({config.tensor_parallel_size}) must be 1 for the local executor")
        self.config = config
        self._worker: Worker | None = None
        self._result: StepResult | None = None

    def start(self) -> ExecutorInfo:
        from llm_ray.worker.parallel import Rank
        from llm_ray.worker.worker import Worker

        start = time.perf_counter()
        worker = Worker(self.config, Rank())
        worker.load("", 0)
        num_blocks = worker.cache_blocks()
        worker.init_cache(num_blocks)
        worker.warm_up()
        self._worker, self._result = worker, None
        return ExecutorInfo(
            ranks=(worker.info(),),
            num_blocks=num_blocks,
            block_size=self.config.block_size,
            max_model_len=worker.max_model_len,
            vocab_size=worker.vocab_size,
            start_s=time.perf_counter() - start,
        )

    def submit(self, plan: StepPlan) -> None:
        if self._worker is None:
            raise ExecutorError("the local executor is not running: call start first")
        try:
            self._result = self._worker.step(plan)
        except LLMRayError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutorError(f"step {plan.step_id} failed: {error}") from error

    def collect(self) -> StepResult:
        if self._result is None:
            raise ExecutorError("no step has been submitted")
        result, self._result = self._result, None
        return result

    def check(self) -> None:
        if self._worker is None:
            raise ExecutorError("the local executor is not running: call start first")

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = None
