"""A real model (9 query heads on 3 KV heads) gives Hugging Face's own tokens, however its requests are served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_ray.config import EngineConfig
from llm_ray.executor.local import LocalExecutor
from tests.support.engine_runs import Started, greedy
from tests.support.process_executor import ProcessExecutor, RankProcesses
from tests.worker.conftest import MAX_TOKENS, SHARED_PREFIX, Reference

NUM_BLOCKS = 400
# 32 answers fit in 12 blocks only a few at a time; the longest prompt needs 12 (170 tokens + 10).
FEW_BLOCKS = 14


def config_for(reference: Reference, tp_size: int, **changes: object) -> EngineConfig:
    return EngineConfig(
        model=str(reference.path),
        tensor_parallel_size=tp_size,
        num_blocks=NUM_BLOCKS,
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def one_rank(smollm2_reference: Reference) -> Iterator[Started]:
    config = config_for(smollm2_reference, 1)
    started = Started(LocalExecutor(config), config)
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def two_ranks(smollm2_reference: Reference, ranks: RankProcesses) -> Iterator[Started]:
    config = config_for(smollm2_reference, 2)
    started = Started(ProcessExecutor(config, ranks), config)
    yield started
    started.shutdown()


@pytest.fixture(params=["one_rank", "two_ranks"])
def started(request: pytest.FixtureRequest) -> Started:
    value: Started = request.getfixturevalue(request.param)
    return value


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_requests", [1, 4, 16, 32])
def test_requests_of_mixed_lengths_get_the_tokens_of_hugging_face(
    started: Started, smollm2_reference: Reference, num_requests: int, prefix_caching: bool
) -> None:
    engine = started.engine(prefix_caching=prefix_caching)
    prompts = smollm2_reference.prompts[:num_requests]
    answers = greedy(engine, prompts, MAX_TOKENS, started.seq_ids)
    assert answers == smollm2_reference.answers[:num_requests]
    num_sharing = num_requests // 2 if prefix_caching else 0  # the first of them computes the prefix
    assert engine.counters.num_cached_tokens >= max(0, num_sharing - 1) * SHARED_PREFIX
    assert prefix_caching or engine.counters.num_cached_tokens == 0


def test_a_prompt_seen_before_gets_the_same_tokens_from_the_cache(
    started: Started, smollm2_reference: Reference
) -> None:
    engine = started.engine()
    prompts, answers = smollm2_reference.prompts[:4], smollm2_reference.answers[:4]
    assert greedy(engine, prompts, MAX_TOKENS, started.seq_ids) == answers
    computed = engine.counters.num_prompt_tokens
    assert greedy(engine, prompts, MAX_TOKENS, started.seq_ids) == answers
    assert engine.counters.num_prompt_tokens - computed < computed / 2


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preempted_requests_resume_with_the_same_tokens(
    started: Started, smollm2_reference: Reference, prefix_caching: bool
) -> None:
    engine = started.engine(prefix_caching=prefix_caching, num_blocks=FEW_BLOCKS)
    answers = greedy(engine, smollm2_reference.prompts[:16], MAX_TOKENS, started.seq_ids)
    assert answers == smollm2_reference.answers[:16]
    assert engine.counters.num_preemptions > 0


def test_hugging_faces_own_forward_gives_the_same_tokens(smollm2_reference: Reference) -> None:
    config = config_for(smollm2_reference, 1, use_layer_walk=False)
    started = Started(LocalExecutor(config), config)
    answers = greedy(started.engine(), smollm2_reference.prompts[:4], MAX_TOKENS, started.seq_ids)
    assert answers == smollm2_reference.answers[:4]
