"""Factories for the engine's tests: small configs, schedulers, sequences, and loops that run them to the end."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

from llm_ray.config import EngineConfig
from llm_ray.engine.block_manager import BlockManager
from llm_ray.engine.engine import Engine
from llm_ray.engine.outputs import FinishOutput, Output, TokenOutput
from llm_ray.engine.scheduler import Scheduler
from llm_ray.engine.sequence import SamplingParams, Sequence
from llm_ray.engine.step import SampledToken, StepPlan, StepResult
from llm_ray.executor.fake import FakeExecutor


def make_config(**settings: Any) -> EngineConfig:
    """A tiny engine: blocks of 4 tokens, 31 of them to use, 32 tokens a step, 8 of one prefill."""
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 32,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "long_prefill_token_threshold": 8,
        "heartbeat_interval_s": 0.02,
        "step_timeout_s": 20.0,
    }
    return EngineConfig(**(defaults | settings))


def make_scheduler(*, num_groups: int = 1, **settings: Any) -> Scheduler:
    config = make_config(**settings)
    blocks = BlockManager(config.num_blocks, config.block_size, config.prefix_caching)
    return Scheduler(config, blocks, num_groups=num_groups)


def make_sequence(
    seq_id: int = 0, prompt: Iterable[int] = (1, 2, 3), *, max_tokens: int = 4, **params: Any
) -> Sequence:
    token_ids = list(prompt)
    return Sequence(seq_id, token_ids, len(token_ids), SamplingParams(max_tokens, **params))


def make_sequences(n: int, *, prompt_len: int = 6, max_tokens: int = 4, shared: int = 0) -> list[Sequence]:
    """Prompts that agree in their first `shared` tokens and in none after that."""
    prefix = [200 + i % 50 for i in range(shared)]
    own = prompt_len - shared
    return [
        make_sequence(i, prefix + [(i * 31 + j * 7 + i * j) % 199 for j in range(own)], max_tokens=max_tokens)
        for i in range(n)
    ]


def make_engine(*, max_in_flight: int = 1, max_model_len: int = 4096, **settings: Any) -> Engine:
    config = make_config(**settings)
    executor = FakeExecutor(config, max_in_flight=max_in_flight, max_model_len=max_model_len)
    executor.keep_plans = True
    engine = Engine(config, executor)
    engine.start()
    return engine


def plans_of(engine: Engine) -> list[StepPlan]:
    assert isinstance(engine.executor, FakeExecutor)
    return engine.executor.plans


def num_used_blocks(engine: Engine) -> int:
    return engine.stats().num_used_blocks


def run(engine: Engine, sequences: Iterable[Sequence] = (), *, max_steps: int = 20_000) -> dict[int, list[Output]]:
    """Add all at once, step until nothing is left; every sequence's outputs."""
    outputs: dict[int, list[Output]] = {}
    for sequence in sequences:
        engine.add(sequence)
        outputs[sequence.seq_id] = []
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        for seq_id, output in engine.step():
            outputs.setdefault(seq_id, []).append(output)
    raise AssertionError(f"still at work after {max_steps} steps: {engine.stats()}")


def tokens_of(outputs: Iterable[Output]) -> list[int]:
    return [output.token_id for output in outputs if isinstance(output, TokenOutput)]


def ends_of(outputs: Iterable[Output]) -> list[FinishOutput]:
    return [output for output in outputs if isinstance(output, FinishOutput)]


def land(scheduler: Scheduler, plan: StepPlan, token_id: int = 9) -> StepResult:
    """Stand in for executor and engine: the step is done and every row that wants a token gets this one."""
    sampled = []
    for sequence, wanted in zip(scheduler.land(plan), plan.sample, strict=True):
        if wanted:
            sequence.token_ids.append(token_id)
            sampled.append(SampledToken(sequence.seq_id, token_id))
    return StepResult(plan.step_id, sampled)


def num_scheduled(plan: StepPlan) -> dict[int, int]:
    """Tokens of each sequence in this step."""
    bounds = plan.query_start_loc
    return {seq_id: bounds[row + 1] - bounds[row] for row, seq_id in enumerate(plan.seq_ids)}


def seeded() -> tuple[int, random.Random]:
    """A fresh seed for each run, or LLM_RAY_TEST_SEED's to repeat one. Put it into the failure message."""
    seed = int(os.environ.get("LLM_RAY_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    return seed, random.Random(seed)
