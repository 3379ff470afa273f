"""Structured output before it reaches a rank: schemas and patterns become llguidance grammars, or HTTP 400. No torch.

A grammar is a string that travels in `SamplingParams.grammar`; `llm_ray.worker.grammar` turns it into token masks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from llm_ray.errors import InvalidRequestError

MAX_SOURCE_BYTES = 64 * 1024
MAX_DEPTH = 64
# A small model may put out white space for ever where the grammar lets it: 40 bytes are ten levels of indentation.
WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"
PARAM = "response_format"


def parser_limits() -> LLParserLimits:
    """What one grammar may cost: about 20 ms to compile, a few ms for the worst mask. Fronts and ranks use the same."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def compile_json_schema(schema: Mapping[str, Any], *, param: str = PARAM) -> str:
    """The grammar of a JSON schema's instances. Raises InvalidRequestError for what is no schema or is too large."""
    _check_depth(schema, param)
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{param}: the schema is not JSON: {error}", param=param) from error
    _check_size(text, param)
    try:
        grammar = str(LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITESPACE}))
    except ValueError as error:
        raise InvalidRequestError(f"{param}: not a JSON schema: {error}", param=param) from error
    return grammar


def compile_json_object() -> str:
    """The grammar of any JSON object."""
    return compile_json_schema({"type": "object"})


def compile_regex(pattern: str, *, param: str = PARAM) -> str:
    """The grammar of texts that match the whole pattern (Rust syntax: no look-around, no back-references)."""
    _check_size(pattern, param)
    try:
        return str(LLMatcher.grammar_from_regex(pattern))
    except ValueError as error:
        raise InvalidRequestError(f"{param}: the pattern is not Unicode text: {error}", param=param) from error


def validate(grammar: str, *, param: str = PARAM) -> None:
    """Raise InvalidRequestError unless the grammar compiles within the limits and some text matches it.

    Needs no model: it is compiled for single bytes. Takes milliseconds; call it outside the event loop.
    """
    matcher = LLMatcher(LLTokenizer("byte"), grammar, limits=parser_limits(), log_level=0)
    matcher.compute_bitmask()  # the first step's limits count too
    problem = matcher.get_error().replace("<non-verbose/>", "").strip()
    if problem.startswith("NoExtension"):
        problem = "no text can match it"
    if problem:
        raise InvalidRequestError(f"{param}: {problem}", param=param, code="invalid_grammar")


def _check_size(text: str, param: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise InvalidRequestError(
            f"{param}: {size} bytes of schema or pattern exceed the limit of {MAX_SOURCE_BYTES}: shorten it",
            param=param,
        )


def _check_depth(schema: Any, param: str) -> None:
    """Refuse deep nesting without recursing: deeper readers would overflow their stacks on it."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidRequestError(
                f"{param}: the schema nests deeper than {MAX_DEPTH} levels: flatten it", param=param
            )
        below: list[Any] = []
        for node in level:
            if isinstance(node, Mapping):
                below += node.values()
            elif isinstance(node, list | tuple):
                below += node
        level = below
