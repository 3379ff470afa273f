"""Request bodies to the transport-neutral request, with the checks that involve more than one field."""

from __future__ import annotations

from dataclasses import replace

from llm_ray.api.protocol import Message, SamplingBody
from llm_ray.api.protocol_chat import ChatBody
from llm_ray.api.protocol_completions import CompletionBody
from llm_ray.api.request import AnswerFormat, Conversation, GenerateRequest, Prompt
from llm_ray.errors import InvalidRequestError

# OpenAI's
DEFAULT_COMPLETION_TOKENS = 16


def completion_request(body: CompletionBody) -> GenerateRequest:
    """Raises InvalidRequestError."""
    _check_stream_options(body)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _request(body, tuple(body.prompts), max_tokens, body.logprobs, "prompt")


def chat_request(body: ChatBody) -> GenerateRequest:
    """Raises InvalidRequestError."""
    _check_stream_options(body)
    request = _request(body, (conversation(body.messages),), _chat_max_tokens(body), _chat_logprobs(body), "messages")
    return request if body.max_completion_tokens is None else replace(request, max_tokens_param="max_completion_tokens")


def conversation(messages: list[Message]) -> Conversation:
    roles = {"developer": "system"}
    return Conversation(tuple({"role": roles.get(m.role, m.role), "content": m.text} for m in messages))


def _request(
    body: SamplingBody, prompts: tuple[Prompt, ...], max_tokens: int | None, logprobs: int | None, prompt_param: str
) -> GenerateRequest:
    return GenerateRequest(
        prompts=prompts,
        n=body.n or 1,
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        stop=body.stop_strings,
        ignore_eos=body.ignore_eos is True,
        answer_format=_answer_format(body),
        prompt_param=prompt_param,
    )


def _answer_format(body: SamplingBody) -> AnswerFormat | None:
    wanted = body.response_format
    structured = wanted is not None and wanted.type != "text"
    if body.guided_regex is not None:
        if structured:
            raise InvalidRequestError("guided_regex and response_format exclude each other", param="guided_regex")
        return AnswerFormat("regex", pattern=body.guided_regex, param="guided_regex")
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return AnswerFormat("json_object")
    return AnswerFormat("json_schema", schema=wanted.json_schema.schema_, param="response_format.json_schema.schema")


def _check_stream_options(body: SamplingBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _chat_max_tokens(body: ChatBody) -> int | None:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequestError(
            "max_tokens and max_completion_tokens are two names of one setting: send one", param="max_tokens"
        )
    return body.max_completion_tokens if body.max_tokens is None else body.max_tokens
