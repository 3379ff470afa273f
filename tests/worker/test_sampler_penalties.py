"""Penalties and logit_bias, exact against a reference written out token by token."""

from __future__ import annotations

from collections import Counter

import torch

from llm_ray.engine.sequence import SamplingParams
from llm_ray.worker.penalties import TokenCounts, apply_penalties
from tests.worker.test_sampler import add, make_sampler, sample_one


def test_penalties_are_exact_and_follow_the_growing_output():
    vocab_size, prompt, output = 50, [4, 4, 7, 9], [4, 11, 11, 11]
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(4)) * 3
    params = {"repetition_penalty": 1.7, "presence_penalty": 0.6, "frequency_penalty": 0.9}
    sampler = make_sampler(vocab_size)
    add(sampler, 1, prompt=prompt, output=output, **params)
    add(sampler, 2, prompt=prompt, output=output, presence_penalty=0.6, frequency_penalty=-0.9)
    add(sampler, 3, prompt=prompt, output=output, repetition_penalty=0.5)
    tokens: dict[int, list[int]] = {1: list(output), 2: list(output), 3: list(output)}
    for _ in range(120):
        for seq_id, result in zip((1, 2, 3), sampler.sample(logits.repeat(3, 1), [1, 2, 3]), strict=True):
            options = sampler._states[seq_id].params
            expected = logits.double().numpy().copy()
            for token in set(prompt) | set(tokens[seq_id]):
                r = options.repetition_penalty
                expected[token] = expected[token] / r if expected[token] > 0 else expected[token] * r
            for token, times in Counter(tokens[seq_id]).items():
                expected[token] -= options.frequency_penalty * times + options.presence_penalty
            best = expected.max()
            assert expected[result.token_id] >= best - 1e-4
            tokens[seq_id].append(result.token_id)
    assert len(set(tokens[1])) > 20 > len(set(tokens[3])) + 10


def test_penalised_logits_equal_the_reference_to_the_last_digits():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(4)) * 3
    expected = logits.clone()
    params = SamplingParams(9, repetition_penalty=1.25, presence_penalty=0.5, frequency_penalty=0.125)
    counts = TokenCounts([1, 2, 3, 3], [3, 5, 5])
    apply_penalties(logits, [2], [counts], [params])
    for token, times in {1: 0, 2: 0, 3: 1, 5: 2}.items():
        score = expected[2, token]
        score = score / 1.25 if score > 0 else score * 1.25
        expected[2, token] = score - 0.125 * times - 0.5 * (times > 0)
    assert torch.equal(logits, expected)


def test_presence_and_frequency_penalties_ignore_the_prompt():
    logits = torch.zeros(10)
    logits[3] = 1.0
    assert sample_one(logits, prompt=[3, 3], presence_penalty=2.0, frequency_penalty=2.0)[0].token_id == 3
    assert sample_one(logits, prompt=[3, 3], repetition_penalty=9.0)[0].token_id == 3  # 1/9 is still the largest
    assert sample_one(logits, prompt=[1], output=[3], presence_penalty=2.0)[0].token_id == 0


def test_logit_bias_forces_and_bans_tokens_and_sums_duplicates():
    logits = torch.arange(10.0)
    assert sample_one(logits, logit_bias=((2, 100.0),))[0].token_id == 2
    assert sample_one(logits, logit_bias=((9, -100.0),))[0].token_id == 8
    assert sample_one(logits, logit_bias=((4, 3.0), (4, 2.5)))[0].token_id == 4
    drawn = {one.token_id for one in sample_one(logits * 0, steps=50, temperature=1.0, logit_bias=((9, -100.0),))}
    assert drawn <= set(range(9))
    assert len(drawn) > 4
