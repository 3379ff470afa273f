"""A rank without a model, for tests of where ranks are and how they end; rank 0 answers the steps."""

from __future__ import annotations

import os

from llm_ray.config import EngineConfig
from llm_ray.engine.step import RankInfo, StepPlan, StepResult
from llm_ray.executor.fake import FakeExecutor

VOCAB_SIZE = 49152  # of the tokenizer that the tests have
STEP_S = 0.05


class FakeRank:
    max_model_len = 4096
    vocab_size = VOCAB_SIZE

    def __init__(self, config: EngineConfig, rank: int) -> None:
        self._config, self._rank = config, rank
        self._fake = FakeExecutor(config, vocab_size=VOCAB_SIZE, step_s=STEP_S, max_model_len=self.max_model_len)

    def load(self, master_addr: str, master_port: int) -> RankInfo:
        return self.info()

    def info(self) -> RankInfo:
        return RankInfo(self._rank, 0, self._rank, os.getpid(), "", 0, 0, "fake", "fake")

    def cache_blocks(self) -> int:
        return self._config.num_blocks

    def init_cache(self, num_blocks: int) -> None:
        self._fake.start()

    def warm_up(self) -> None:
        pass

    def step(self, plan: StepPlan) -> StepResult | None:
        if self._rank:
            return None
        self._fake.submit(plan)
        return self._fake.collect()

    def shutdown(self) -> None:
        self._fake.shutdown()


def make_fake_rank(config: EngineConfig, rank: int) -> FakeRank:
    return FakeRank(config, rank)
