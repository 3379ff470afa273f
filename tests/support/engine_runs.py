"""Run prompts through a real engine, and through Hugging Face's generate, greedily."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence as SequenceOf
from typing import Any

import torch

from llm_ray.config import EngineConfig
from llm_ray.engine.engine import Engine
from llm_ray.engine.sequence import SamplingParams, Sequence
from llm_ray.engine.step import Executor, ExecutorInfo, StepPlan, StepResult

Prompts = SequenceOf[SequenceOf[int]]


class Started:
    """A running executor handed from engine to engine, so that a model is loaded once for many settings.

    Each engine sees num_blocks of its KV blocks. Sequence ids never repeat.
    """

    max_in_flight = 1

    def __init__(self, executor: Executor, config: EngineConfig) -> None:
        self.executor, self.config = executor, config
        self.info = executor.start()
        self.num_blocks = self.info.num_blocks
        self.seq_ids = itertools.count()

    def engine(self, **changes: Any) -> Engine:
        """An engine over this executor with some settings changed; num_blocks limits the scheduler alone."""
        config = dataclasses.replace(self.config, **changes)
        self.num_blocks = config.num_blocks or self.info.num_blocks
        engine = Engine(config, self)
        engine.start()
        return engine

    def start(self) -> ExecutorInfo:
        return dataclasses.replace(self.info, num_blocks=self.num_blocks)

    def submit(self, plan: StepPlan) -> None:
        self.executor.submit(plan)

    def collect(self) -> StepResult:
        return self.executor.collect()

    def check(self) -> None:
        self.executor.check()

    def shutdown(self) -> None:
        self.executor.shutdown()


def greedy(engine: Engine, prompts: Prompts, max_tokens: int, seq_ids: itertools.count[int]) -> list[list[int]]:
    """All prompts at once; their output tokens."""
    sequences = [
        Sequence(next(seq_ids), list(prompt), len(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0))
        for prompt in prompts
    ]
    for sequence in sequences:
        engine.add(sequence)
    while engine.has_work:
        engine.step()
    assert engine.stats().num_used_blocks == 0
    return [sequence.output_token_ids for sequence in sequences]


@torch.inference_mode()
def hf_greedy(model: Any, prompts: Prompts, max_tokens: int) -> list[list[int]]:
    """Hugging Face's generate, one prompt at a time, never stopping early."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=[],
            pad_token_id=0,
            use_cache=True,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers
