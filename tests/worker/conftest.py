"""Checkpoints with Hugging Face's own answers to them, and one pair of ranks that serves them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.support.engine_runs import hf_greedy
from tests.support.process_executor import RankProcesses
from tests.worker import tiny_models

TINY_MAX_TOKENS = 12
MAX_TOKENS = 10
LENGTHS = (3, 20, 47, 90, 16, 1, 130, 33)
SHARED_PREFIX = 48  # three whole blocks

TEXT = """The lighthouse keeper counted the ships that passed in the night, and wrote each of them down in a long grey
book: where it came from, how many lamps it carried, and whether its crew had sung. In the winter of 1911 not one had
come by for nine days, so he wrote about the weather instead. Fog, he wrote; then snow; then a wind from the north-east
that bent the iron railing. On the tenth day a small boat drifted ashore with nothing in it but a sealed letter, a clock
that still ran, and a cat. The letter said: "Whoever finds this, please wind the clock every evening at six." He did."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A checkpoint, prompts for it, and the tokens that Hugging Face's generate gives greedily."""

    path: Path
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankProcesses]:
    """Two processes for two ranks."""
    with RankProcesses(2) as processes:
        yield processes


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """A tiny random model by its name in tiny_models."""
    made: dict[str, Reference] = {}

    def make(name: str) -> Reference:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            model = tiny_models.build(name, path)
            prompts = tiny_models.prompts()
            made[name] = Reference(path, prompts, hf_greedy(model, prompts, TINY_MAX_TOKENS))
        return made[name]

    return make


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: Path) -> Reference:
    """32 prompts of mixed lengths, every other one behind the same prefix."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, local_files_only=True).eval()
    ids = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)(TEXT)["input_ids"]
    prompts = []
    for index in range(32):
        start = (SHARED_PREFIX + 5 * index) % (len(ids) - max(LENGTHS))
        own = ids[start : start + LENGTHS[index % len(LENGTHS)]]
        prompts.append(ids[:SHARED_PREFIX] + own if index % 2 else own)
    return Reference(smollm2, prompts, hf_greedy(model, prompts, MAX_TOKENS))
