"""Every architecture on the allow-list gives Hugging Face's own tokens, whole and cut in two, on both paths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_ray.config import EngineConfig
from llm_ray.engine.engine import Engine
from llm_ray.engine.outputs import TokenOutput
from llm_ray.engine.sequence import SamplingParams, Sequence
from llm_ray.errors import ConfigError
from llm_ray.executor.local import LocalExecutor
from llm_ray.worker.architectures import ARCHITECTURES
from llm_ray.worker.model_loader import read_config
from tests.support.engine_runs import Started, greedy
from tests.support.process_executor import ProcessExecutor, RankProcesses
from tests.worker.conftest import TINY_MAX_TOKENS, Reference
from tests.worker.tiny_models import TINY_MODELS

Tiny = Callable[[str], Reference]

# (name, whether the layer walk runs); types without a walk have Hugging Face's forward alone.
CASES = [
    pytest.param(name, uses_walk, id=f"{name}-{'walk' if uses_walk else 'hf'}")
    for name, (model_type, _) in TINY_MODELS.items()
    for uses_walk in ((True, False) if ARCHITECTURES[model_type].walk else (False,))
]
TP2_CASES = [case for case in CASES if case.values != ("llama-one-kv-head", False)]


def config_for(reference: Reference, tp_size: int, uses_walk: bool) -> EngineConfig:
    """Small blocks and steps, so that prompts come in several chunks beside other sequences' decodes."""
    return EngineConfig(
        model=str(reference.path),
        tensor_parallel_size=tp_size,
        use_layer_walk=uses_walk,
        num_blocks=64,
        block_size=8,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=24,
    )


@pytest.mark.parametrize(("name", "uses_walk"), CASES)
def test_one_rank_gives_the_tokens_of_hugging_face(tiny: Tiny, name: str, uses_walk: bool) -> None:
    reference = tiny(name)
    config = config_for(reference, 1, uses_walk)
    started = Started(LocalExecutor(config), config)
    assert greedy(started.engine(), reference.prompts, TINY_MAX_TOKENS, started.seq_ids) == reference.answers


@pytest.mark.parametrize(("name", "uses_walk"), TP2_CASES)
def test_two_ranks_give_the_tokens_of_hugging_face(
    tiny: Tiny, ranks: RankProcesses, name: str, uses_walk: bool
) -> None:
    reference = tiny(name)
    config = config_for(reference, 2, uses_walk)
    executor = ProcessExecutor(config, ranks)
    try:
        started = Started(executor, config)
        answers = greedy(started.engine(), reference.prompts, TINY_MAX_TOKENS, started.seq_ids)
    finally:
        executor.shutdown()
    assert answers == reference.answers
    assert started.info.ranks[0].num_parameters > started.info.ranks[1].num_parameters  # uneven heads or MLP


def test_three_ranks_give_the_tokens_of_hugging_face(tiny: Tiny) -> None:
    reference = tiny("llama-bias")
    config = config_for(reference, 3, True)
    with RankProcesses(3) as ranks:
        executor = ProcessExecutor(config, ranks)
        started = Started(executor, config)
        answers = greedy(started.engine(), reference.prompts, TINY_MAX_TOKENS, started.seq_ids)
        executor.shutdown()
    assert answers == reference.answers


def test_every_architecture_on_the_allow_list_has_a_tiny_model() -> None:
    assert {model_type for model_type, _ in TINY_MODELS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_the_answers_compared_are_not_all_alike(tiny: Tiny, name: str) -> None:
    answers = tiny(name).answers
    assert len({tuple(answer) for answer in answers}) >= len(answers) - 2
    assert len({token for answer in answers for token in answer}) >= 6


def test_more_ranks_than_kv_heads_are_refused_by_hugging_faces_forward_alone(tiny: Tiny) -> None:
    config = config_for(tiny("llama-one-kv-head"), 2, False)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size \(2\) must be at most num_key_value_heads \(1\)"):
        read_config(config)


@pytest.mark.parametrize("uses_walk", [True, False])
@pytest.mark.parametrize("name", ["llama", "granite", "gemma2", "cohere", "phi"])
def test_logprobs_are_those_of_hugging_face(tiny: Tiny, name: str, uses_walk: bool) -> None:
    """Greedy tokens do not see a scale or a softcap of the logits."""
    reference = tiny(name)
    prompt = reference.prompts[3]
    model = AutoModelForCausalLM.from_pretrained(reference.path, attn_implementation="eager", local_files_only=True)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    config = config_for(reference, 1, uses_walk)
    engine = Engine(config, LocalExecutor(config))
    engine.start()
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5)
    engine.add(Sequence(0, list(prompt), len(prompt), params))
    tokens = []
    while engine.has_work:
        tokens += [output for _, output in engine.step() if isinstance(output, TokenOutput)]
    best = expected.topk(5)
    assert [choice.token_id for choice in tokens[0].top] == best.indices.tolist()
    assert [choice.logprob for choice in tokens[0].top] == pytest.approx(best.values.tolist(), abs=1e-4)
