"""One generation request, whatever transport brought it, and how it becomes the engine's SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_ray.engine.sequence import SamplingParams
from llm_ray.errors import InvalidRequestError

# top_p 0 keeps only the most probable token; the sampler wants it above 0
_SMALLEST_TOP_P = 1e-6


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns to be rendered by the model's chat template, {"role", "content"} each."""

    messages: tuple[dict[str, str], ...]


Prompt = str | list[int] | Conversation


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the answer must match: a JSON schema, any JSON object, or a regular expression."""

    kind: Literal["json_schema", "json_object", "regex"]
    schema: Mapping[str, Any] | None = None
    pattern: str = ""
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """max_tokens None is as many as fit. logprobs None is none, else how many alternatives beside each token.
    prompt_param and max_tokens_param are what the transport calls the two, for error messages."""

    prompts: tuple[Prompt, ...]
    n: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    answer_format: AnswerFormat | None = None
    prompt_param: str = "prompt"
    max_tokens_param: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class ModelLimits:
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]


def sampling_params(
    request: GenerateRequest, num_prompt_tokens: int, limits: ModelLimits, grammar: str | None
) -> list[SamplingParams]:
    """One for each of the n choices. Raises InvalidRequestError when the answer cannot fit beside the prompt."""
    max_tokens = _max_tokens(request, num_prompt_tokens, limits.max_model_len)
    bias = _logit_bias(request.logit_bias, limits.vocab_size)
    return [
        SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(request.temperature, 1.0),
            top_k=max(0, request.top_k or 0),
            top_p=max(_SMALLEST_TOP_P, _or(request.top_p, 1.0)),
            min_p=_or(request.min_p, 0.0),
            seed=_seed(request.seed, index),
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            repetition_penalty=_or(request.repetition_penalty, 1.0),
            logit_bias=bias,
            logprobs=request.logprobs,
            stop_token_ids=frozenset() if request.ignore_eos else limits.eos_token_ids,
            grammar=grammar,
        )
        for index in range(request.n)
    ]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _max_tokens(request: GenerateRequest, num_prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {num_prompt_tokens} tokens, but prompt and answer together may have "
            f"max_model_len ({max_model_len}): shorten the prompt",
            param=request.prompt_param,
            code="context_length_exceeded",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise InvalidRequestError(
            f"{request.max_tokens_param} ({request.max_tokens}) plus the prompt's {num_prompt_tokens} tokens exceeds "
            f"max_model_len ({max_model_len}): ask for at most {room}",
            param=request.max_tokens_param,
            code="context_length_exceeded",
        )
    return room if request.max_tokens is None else request.max_tokens


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidRequestError(
                f"logit_bias has the key {key[:40]!r}: keys are token ids below {vocab_size}", param="logit_bias"
            )
        pairs[int(key)] = value
    return tuple(sorted(pairs.items()))


def _seed(seed: int | None, index: int) -> int | None:
    """The choices of one request differ, yet each is repeatable."""
    return None if seed is None else (seed + index) % (1 << 63)
