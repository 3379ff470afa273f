"""The sampler against an exact numpy reference: distributions, penalties, logprobs, and what a draw depends on."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence, SampledToken
from llm_ray.worker import draw
from llm_ray.worker.sampler import Sampler


def make_sampler(vocab_size: int, seed: int = 0) -> Sampler:
    return Sampler(vocab_size, None, seed)


def add(sampler: Sampler, seq_id: int, prompt: list[int] | None = None, output: list[int] | None = None, **params: Any):
    prompt = prompt or [1]
    sequence = NewSequence(
        seq_id, prompt + (output or []), len(prompt), SamplingParams(max_tokens=99, **{"temperature": 0.0, **params})
    )
    sampler.add(sequence)


def sample_one(logits: torch.Tensor, *, steps: int = 1, **kwargs: Any) -> list[SampledToken]:
    sampler = make_sampler(len(logits))
    add(sampler, 5, **kwargs)
    return [sampler.sample(logits[None].clone(), [5])[0] for _ in range(steps)]


def reference(logits: np.ndarray, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Exact probabilities: temperature, top-k, top-p over the rest, min-p; the lower index first among equals."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(probs)), -logits))
    if top_k:
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    kept, mass = [], 0.0
    for token in order:
        if kept and mass >= top_p and top_p < 1:
            break
        kept.append(token)
        mass += probs[token]
    allowed = np.zeros_like(probs)
    allowed[kept] = probs[kept]
    allowed[allowed < min_p * allowed.max()] = 0
    return allowed / allowed.sum()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.3, "top_k": 90},
        {"temperature": 1.0, "top_p": 0.3},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 3.0, "top_p": 0.97},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.05},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [61, 200, 3000])
def test_drawn_frequencies_are_the_exact_distributions(params, vocab_size):
    num_draws = 6000
    logits = torch.from_numpy(np.random.default_rng(7).normal(0, 2, vocab_size).astype(np.float32))
    sampler = make_sampler(vocab_size)
    for seq_id in range(num_draws):
        add(sampler, seq_id, seed=seq_id, **params)
    drawn = Counter(
        result.token_id
        for first in range(0, num_draws, 500)
        for result in sampler.sample(logits.repeat(500, 1), list(range(first, first + 500)))
    )
    expected = reference(logits.numpy(), **params) * num_draws
    assert set(drawn) <= set(np.flatnonzero(expected).tolist())
    # Chi-square over the tokens expected at least five times, the others together as one; five sigma above its mean.
    often = np.flatnonzero(expected >= 5)
    observed = np.array([drawn[int(token)] for token in often], dtype=float)
    pairs = [(observed, expected[often]), (num_draws - observed.sum(), num_draws - expected[often].sum())]
    chi2 = sum(float(np.sum((seen - due) ** 2 / due)) for seen, due in pairs if np.all(due > 1e-6))
    freedom = len(often)
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 5


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([5, 64, 130, 1500, 5000]),
    step=st.sampled_from([0.0, 0.25, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 60, 1200]),
    top_p=st.sampled_from([1.0, 0.05, 0.5, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.01, 0.5]),
    temperature=st.sampled_from([0.2, 1.0, 5.0]),
)
def test_a_draw_is_the_inverse_cumulative_distribution_of_what_the_filters_leave(
    seed, vocab_size, step, top_k, top_p, min_p, temperature
):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, vocab_size).astype(np.float32)
    if step:
        logits = (np.round(logits / step) * step).astype(np.float32)  # many equal logits, as in bfloat16
    params = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    expected = reference(logits, temperature, **params)
    uniforms = generator.uniform(size=40)
    num = len(uniforms)
    probs = draw.probabilities_(torch.from_numpy(logits).repeat(num, 1), torch.full((num,), temperature))
    found = draw.draw_truncated(
        probs,
        torch.from_numpy(uniforms),
        torch.full((num,), min(top_k or vocab_size, vocab_size)),
        torch.full((num,), top_p, dtype=torch.float64),
        torch.full((num,), min_p, dtype=torch.float64),
    ).numpy()
    order = np.lexsort((np.arange(vocab_size), -logits))
    upper = np.cumsum(expected[order])
    place = np.empty(vocab_size, dtype=int)
    place[order] = np.arange(vocab_size)
    slack = 2e-5  # float32 probabilities against float64, and one token more or less at the border
    assert (uniforms <= upper[place[found]] + slack).all()
    assert (uniforms >= upper[place[found]] - expected[found] - slack).all()


def test_no_draw_ever_hits_a_token_of_probability_zero():
    logits = torch.full((3, 300), float("-inf"))
    logits[:, [70, 71, 299]] = torch.tensor([0.0, -1.0, -9.0])
    probs = draw.probabilities_(logits, torch.ones(3))
    edge = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert draw.draw(probs, edge).tolist() == [70, 70, 299]
    none, off = torch.full((3,), 300), torch.zeros(3, dtype=torch.float64)
    assert draw.draw_truncated(probs, edge, none, off + 1, off).tolist() == [70, 70, 299]


def test_uniform_numbers_are_uniform_and_independent_of_each_other():
    values = np.array([[draw.uniform(draw.derive_key(seed), at) for at in range(200)] for seed in range(100)])
    counts = np.histogram(values, bins=50, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 100  # 49 degrees of freedom, five sigma
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("vocab_size", [3, 64, 100, 1000])
def test_argmax_is_the_lowest_of_the_largest(vocab_size):
    logits = torch.randint(0, 9, (50, vocab_size), generator=torch.Generator().manual_seed(1)).float()
    logits[0] = float("-inf")
    assert draw.argmax(logits).tolist() == [int(np.argmax(row)) for row in logits.numpy()]


@pytest.mark.parametrize(("vocab_size", "k"), [(100, 3), (5000, 10), (5000, 60), (5000, 5000)])
def test_top_is_sorted_and_equals_come_by_index(vocab_size, k):
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1)).mul(8).round()
    values, index = draw.top(logits, k)
    assert torch.equal(values, logits.sort(descending=True).values[:, :k])
    assert torch.equal(values, logits.gather(1, index))
    assert all(row == sorted(row, key=lambda one: (-one[0], one[1])) for row in zipped(values, index))


def zipped(values: torch.Tensor, index: torch.Tensor) -> list[list[tuple[float, int]]]:
    return [list(zip(*row, strict=True)) for row in zip(values.tolist(), index.tolist(), strict=True)]


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "seed": 11},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 700, "seed": 3},
    {"temperature": 2.5, "top_p": 0.95},
    {"temperature": 2.5, "top_p": 0.95, "seed": 4, "logprobs": 3},
    {"temperature": 1.2, "min_p": 0.1, "frequency_penalty": 0.5},
    {"presence_penalty": 1.5, "repetition_penalty": 1.3},
    {"temperature": 0.9, "logit_bias": ((3, 4.0), (9, -100.0)), "logprobs": 0},
]


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_a_continuation_depends_on_nothing_but_its_own_row(step):
    """Alone, in a batch, in another order, with others joining and leaving, and after a preemption: the same tokens."""
    vocab_size, length = 2000, 12
    rows = torch.randn(len(MIXED), length, vocab_size, generator=torch.Generator().manual_seed(2)) * 2
    if step:
        rows = (rows / step).round() * step
    together = make_sampler(vocab_size, seed=42)
    for seq_id, params in enumerate(MIXED):
        add(together, seq_id, prompt=[1, 2, 3], **params)
    outputs: list[list[SampledToken]] = [[] for _ in MIXED]
    for at in range(length):
        ids = [i for i in range(len(MIXED)) if (at + i) % 4]
        ids.sort(key=lambda i: (i * 7 + at) % 11)
        if at == 5:  # preempted and resumed
            for i, params in enumerate(MIXED):
                together.remove(i)
                add(together, i, prompt=[1, 2, 3], output=[one.token_id for one in outputs[i]], **params)
        picked = torch.stack([rows[i, len(outputs[i])] for i in ids])
        for i, result in zip(ids, together.sample(picked, ids), strict=True):
            assert result.seq_id == i
            outputs[i].append(result)
    for i, params in enumerate(MIXED):
        alone = make_sampler(vocab_size, seed=42)
        add(alone, i, prompt=[1, 2, 3], **params)
        again = [alone.sample(rows[i, at][None].clone(), [i])[0] for at in range(len(outputs[i]))]
        assert [one.token_id for one in again] == [one.token_id for one in outputs[i]], params
        assert [one.logprob for one in again] == pytest.approx([one.logprob for one in outputs[i]], abs=1e-5)


def test_a_seed_fixes_the_draws_whatever_the_engine_seed_and_sequence_id():
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0))

    def tokens(engine_seed: int, seq_id: int, **params: Any) -> list[int]:
        sampler = make_sampler(500, engine_seed)
        add(sampler, seq_id, temperature=2.0, **params)
        return [sampler.sample(logits[None].clone(), [seq_id])[0].token_id for _ in range(20)]

    assert tokens(0, 1, seed=77) == tokens(5, 9, seed=77) != tokens(0, 1, seed=78)
    assert tokens(0, 1) == tokens(0, 1)
    assert len({tuple(tokens(*key)) for key in [(0, 1), (0, 2), (1, 1), (1, 0)]}) == 4
    assert tokens(0, 1, seed=-(1 << 70)) == tokens(1, 2, seed=-(1 << 70))


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 3.0}, {"temperature": 0.8, "top_k": 4, "logit_bias": ((7, 9.0),)}]
)
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_logprobs_are_log_softmax_of_the_models_own_logits(params, num_top):
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(6)) * 4
    expected = logits.double().log_softmax(-1)
    for result in sample_one(logits, steps=5, logprobs=num_top, **params):
        assert result.logprob == pytest.approx(expected[result.token_id].item(), abs=2e-5)
        assert [one.token_id for one in result.top] == expected.topk(num_top).indices.tolist()
        assert [one.logprob for one in result.top] == pytest.approx(expected.topk(num_top).values.tolist(), abs=2e-5)


def test_only_sequences_that_ask_get_logprobs():
    sampler = make_sampler(100)
    add(sampler, 1)
    add(sampler, 2, logprobs=2)
    plain, reported = sampler.sample(torch.randn(2, 100), [1, 2])
    assert (plain.logprob, plain.top) == (None, ())
    assert len(reported.top) == 2


def test_a_very_small_temperature_is_greedy_and_never_overflows():
    logits = torch.randn(300, generator=torch.Generator().manual_seed(8)) * 50
    for temperature in (1e-37, 5e-324):
        for params in ({}, {"top_p": 0.9}, {"top_k": 20}):
            drawn = sample_one(logits, steps=9, temperature=temperature, **params)
            assert {one.token_id for one in drawn} == {int(logits.argmax())}


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}, {"top_k": 3}])
def test_a_row_of_nan_still_gives_some_token(params):
    """A sequence whose activations overflowed must not end the step for the others."""
    result = sample_one(torch.full((200,), float("nan")), **params, logprobs=1)[0]
    assert 0 <= result.token_id < 200


def test_a_sequence_added_again_is_sampled_with_its_new_state():
    sampler = make_sampler(10)
    for token in (3, 7):
        add(sampler, 1, logit_bias=((token, 50.0),))
        assert [sampler.sample(torch.zeros(1, 10), [1])[0].token_id for _ in range(2)] == [token, token]


def test_removed_and_unknown_sequences_leave_nothing_behind():
    sampler = make_sampler(10)
    add(sampler, 1)
    sampler.remove(1)
    sampler.remove(1)
    assert not sampler._states
    assert sampler.sample(torch.empty(0, 10), []) == []
    with pytest.raises(KeyError):
        sampler.sample(torch.zeros(1, 10), [1])
