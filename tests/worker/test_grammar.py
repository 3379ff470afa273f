"""Grammars with the real SmolLM2 tokenizer: random walks through the masks, refusals, and what an error does."""

from __future__ import annotations

import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from llguidance import LLTokenizer

from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence
from llm_ray.errors import InvalidRequestError
from llm_ray.grammar import (
    MAX_DEPTH,
    MAX_SOURCE_BYTES,
    compile_json_object,
    compile_json_schema,
    compile_regex,
    validate,
)
from llm_ray.worker.grammar import GrammarMatcher, load_tokenizer
from llm_ray.worker.sampler import Sampler

WIDTH = 49_152
PADDED = WIDTH + 128
END = 2
BYTES = LLTokenizer("byte")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "score": {"type": "number", "minimum": -1, "maximum": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "naïve", "日本"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "home": {"type": "boolean"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICE = {
    "anyOf": [
        {"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"], "additionalProperties": False},
        {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 5}, "minItems": 1, "maxItems": 4},
        {"type": "null"},
    ]
}
NESTED = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
    "required": ["left", "right"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "object", "properties": {"v": {"enum": [1, 2.5, "s", None]}}, "required": ["v"],
                       "additionalProperties": False}},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> LLTokenizer:
    return load_tokenizer(smollm2, PADDED)


def walk(matcher: GrammarMatcher, rng: random.Random, limit: int = 400) -> list[int]:
    """Uniformly random allowed tokens until an end token; the end token is not returned."""
    tokens: list[int] = []
    while len(tokens) < limit:
        token = rng.choice(torch.nonzero(matcher.allowed())[:, 0].tolist())
        if token == END:
            return tokens
        matcher.consume(token)
        tokens.append(token)
    raise AssertionError(f"no end after {limit} tokens")


@pytest.mark.parametrize("schema", [PERSON, CHOICE, NESTED], ids=["person", "choice", "nested"])
def test_every_random_walk_through_the_masks_is_valid_json(tokenizer, schema):
    grammar = compile_json_schema(schema)
    validate(grammar)
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(120):
        tokens = walk(GrammarMatcher(tokenizer, grammar, PADDED, [END]), random.Random(seed))
        validator.validate(json.loads(tokenizer.decode_str(tokens)))


def test_any_json_object_is_what_json_object_allows(tokenizer):
    grammar = compile_json_object()
    validate(grammar)
    for text, is_allowed in [
        ('{"a": [1, {"b": null}], "ü": "\\n\\u0007é"}', True),
        ("{}", True),
        ("[1]", False),
        ("x", False),
    ]:
        matcher = GrammarMatcher(tokenizer, grammar, PADDED, [END], tokenizer.tokenize_str(text))
        assert (not matcher.is_failed and bool(matcher.allowed()[END])) == is_allowed, text


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9]{3}-[a-f]{1,4}",
        r"^(yes|no|maybe)$",
        r"(?i)abc",
        r"[^\n]{0,20}!",
        r"\w{2,5}@\w{2,5}\.(com|org)",
        r"é{1,3}日本",
    ],
)
def test_every_random_walk_matches_the_whole_pattern(tokenizer, pattern):
    grammar = compile_regex(pattern)
    validate(grammar)
    for seed in range(25):
        text = tokenizer.decode_str(walk(GrammarMatcher(tokenizer, grammar, PADDED, [END]), random.Random(seed)))
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "object", "properties": 5},
        {"$ref": "#/missing"},
        {"$ref": "https://example.com/schema"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "integer", "minimum": 5, "maximum": 2},
        {"not": {}},
        {"enum": []},
        {"const": "\ud800"},
        {"const": float("nan")},
        {"const": object()},
        {"$ref": "#"},
        {"type": "string", "x-guidance": {"unknown": 1}},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(6)]} for i in range(12)]},
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_a_bad_schema_is_refused_before_it_is_scheduled(schema):
    with pytest.raises(InvalidRequestError) as caught:
        validate(compile_json_schema(schema))
    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format: ")


@pytest.mark.parametrize(
    "pattern", ["(", "(?=a)b", r"(a)\1", r"\bword", "a^b", "[z-a]", "\ud800", "(" * 5000 + ")" * 5000]
)
def test_a_bad_pattern_is_refused_before_it_is_scheduled(pattern):
    with pytest.raises(InvalidRequestError) as caught:
        validate(compile_regex(pattern, param="guided_regex"), param="guided_regex")
    assert caught.value.param == "guided_regex"


def test_schemas_and_patterns_over_the_limits_are_refused_with_the_limit():
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequestError, match=f"deeper than {MAX_DEPTH} levels"):
        compile_json_schema(deep)
    while "items" in deep:  # freed level by level: nested dictionaries are freed recursively
        deep = deep["items"]
    with pytest.raises(InvalidRequestError, match=f"exceed the limit of {MAX_SOURCE_BYTES}"):
        compile_json_schema({"enum": ["x" * 1000] * 70})
    with pytest.raises(InvalidRequestError, match=f"exceed the limit of {MAX_SOURCE_BYTES}"):
        compile_regex("a" * (MAX_SOURCE_BYTES + 1))


def test_white_space_in_json_ends():
    grammar = compile_json_schema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    for spaces, is_allowed in [(40, True), (41, False)]:
        matcher = GrammarMatcher(
            BYTES, grammar, BYTES.vocab_size, [BYTES.eos_token], list(b"{" + b" " * spaces + b'"a":1}')
        )
        assert matcher.is_failed == (not is_allowed)


def test_after_the_end_of_the_grammar_only_the_end_token_is_left(tokenizer):
    matcher = GrammarMatcher(tokenizer, compile_regex("ab?"), PADDED, [END], tokenizer.tokenize_str("ab"))
    assert matcher.is_complete
    assert torch.nonzero(matcher.allowed())[:, 0].tolist() == [END]
    matcher.consume(END)
    assert torch.nonzero(matcher.allowed())[:, 0].tolist() == [END]
    assert not matcher.is_failed


def test_a_token_outside_the_mask_fails_the_matcher_and_leaves_only_the_end(tokenizer):
    matcher = GrammarMatcher(tokenizer, compile_regex("[0-9]+"), PADDED, [END])
    matcher.consume(tokenizer.tokenize_str("x")[0])
    assert matcher.is_failed
    assert torch.nonzero(matcher.allowed())[:, 0].tolist() == [END]
    assert "x" in matcher.error


@pytest.fixture(scope="module")
def sampler_of(smollm2: Path):
    return lambda path=str(smollm2): Sampler(PADDED, path, 0)


def make_sequence(seq_id: int, output: list[int] | None = None, **params: Any) -> NewSequence:
    options = {"stop_token_ids": frozenset({END}), "temperature": 0.0, **params}
    return NewSequence(seq_id, [1, *(output or [])], 1, SamplingParams(max_tokens=200, **options))


def run(sampler: Sampler, seq_ids: list[int], preempt_at: int | None = None) -> dict[int, list[int]]:
    """Random logits, equal for a sequence's position whatever the batch, until every sequence drew the end token."""
    outputs: dict[int, list[int]] = {seq_id: [] for seq_id in seq_ids}
    sequences = {seq_id: sampler._states[seq_id].params for seq_id in seq_ids}
    for step in range(200):
        if step == preempt_at:
            for seq_id in seq_ids:
                sampler.remove(seq_id)
                sampler.add(NewSequence(seq_id, [1, *outputs[seq_id]], 1, sequences[seq_id]))
        running = [seq_id for seq_id in seq_ids if END not in outputs[seq_id]]
        if not running:
            return outputs
        rows = [
            torch.randn(PADDED, generator=torch.Generator().manual_seed(1000 * seq_id + len(outputs[seq_id])))
            for seq_id in running
        ]
        for result in sampler.sample(torch.stack(rows), running):
            outputs[result.seq_id].append(result.token_id)
    raise AssertionError("not all sequences ended")


def test_constrained_and_free_sequences_share_a_step_and_a_preempted_one_goes_on_where_it_was(sampler_of, tokenizer):
    grammars = [compile_json_schema(PERSON), None, compile_regex("[a-z]{5,9}"), compile_json_schema(CHOICE)]

    def outputs(preempt_at: int | None) -> dict[int, list[int]]:
        sampler = sampler_of()
        for seq_id, grammar in enumerate(grammars):
            bias = () if grammar else ((END, 100.0),)
            temperature = float(seq_id % 2)
            sampler.add(make_sequence(seq_id, grammar=grammar, temperature=temperature, logit_bias=bias))
        return run(sampler, [0, 1, 2, 3], preempt_at)

    plain = outputs(None)
    jsonschema.validate(json.loads(tokenizer.decode_str(plain[0][:-1])), PERSON)
    assert re.fullmatch("[a-z]{5,9}", tokenizer.decode_str(plain[2][:-1]))
    jsonschema.validate(json.loads(tokenizer.decode_str(plain[3][:-1])), CHOICE)
    assert outputs(3) == plain


def test_bias_and_temperature_never_lift_a_token_that_the_grammar_forbids(sampler_of, tokenizer):
    sampler = sampler_of()
    forbidden = tokenizer.tokenize_str("x")[0]
    options = {"grammar": compile_regex("[0-9]{3}"), "temperature": 5.0, "logit_bias": ((forbidden, 100.0),)}
    for seq_id in range(20):
        sampler.add(make_sequence(seq_id, **options))
    for tokens in run(sampler, list(range(20))).values():
        assert re.fullmatch("[0-9]{3}", tokenizer.decode_str(tokens[:-1]))


@pytest.mark.parametrize("grammar", ["not a grammar", compile_regex("("), compile_json_schema({"$ref": "#"})])
def test_a_grammar_that_fails_on_the_rank_ends_its_own_sequence_and_is_logged_once(sampler_of, grammar, caplog):
    sampler = sampler_of()
    sampler.add(make_sequence(1, grammar=grammar))
    sampler.add(make_sequence(2))
    logits = torch.randn(2, PADDED)
    for _ in range(3):
        broken, free = sampler.sample(logits.clone(), [1, 2])
        assert broken.token_id == END
        assert free.token_id == int(logits[1].argmax())
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert errors[0].startswith("grammar_failed seq_id=1 position=0 error=")


def test_a_replayed_output_that_does_not_fit_ends_the_sequence(sampler_of, tokenizer, caplog):
    sampler = sampler_of()
    sampler.add(make_sequence(1, output=tokenizer.tokenize_str("oops"), grammar=compile_regex("[0-9]{3}")))
    assert sampler.sample(torch.randn(1, PADDED), [1])[0].token_id == END
    assert "grammar_failed seq_id=1 position=" in caplog.text


def test_without_a_tokenizer_a_grammar_ends_its_sequence_and_says_why(sampler_of, caplog):
    sampler = sampler_of(path=None)
    sampler.add(make_sequence(1, grammar=compile_regex("a")))
    assert sampler.sample(torch.randn(1, PADDED), [1])[0].token_id == END
    assert "grammars need tokenizer_path" in caplog.text


def test_end_tokens_come_from_the_tokenizer_and_the_generation_config(smollm2, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((smollm2 / name).read_bytes())
    assert load_tokenizer(tmp_path, WIDTH).eos_tokens == [END]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert load_tokenizer(tmp_path, WIDTH).eos_tokens == [END, 0]
    assert load_tokenizer(tmp_path, PADDED).vocab_size == PADDED
