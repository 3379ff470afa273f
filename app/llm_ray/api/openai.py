"""OpenAI's routes that generate: completions and chat completions."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request, Response

from llm_ray.api.chat_format import ChatFormatter
from llm_ray.api.completion_format import CompletionFormatter
from llm_ray.api.convert import chat_request, completion_request
from llm_ray.api.protocol_chat import ChatBody, ChatChunk, ChatCompletion
from llm_ray.api.protocol_completions import Completion, CompletionBody
from llm_ray.api.respond import respond
from llm_ray.api.routing import WITH_BODY, Responses, StrictJsonRoute, refusals
from llm_ray.api.service import GetService


def _streamed(chunk: str) -> Responses:
    """The 200 of a route that can stream."""
    text = f"server-sent events, each `data:` a {chunk} (or an error), the last one [DONE]"
    return {200: {"content": {"text/event-stream": {"schema": {"type": "string", "description": text}}}}}


def openai_router(get_service: GetService) -> APIRouter:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post(
        "/v1/completions",
        response_model=Completion,
        responses={**_streamed(Completion.__name__), **refusals(*WITH_BODY)},
        tags=["openai"],
    )
    async def completions(request: Request, body: CompletionBody) -> Response:
        service = get_service()
        service.check_model(body.model)
        wanted = completion_request(body)
        formatter = CompletionFormatter(
            f"cmpl-{uuid.uuid4().hex}",
            int(time.time()),
            service.model_name,
            service.tokenizer,
            num_top=body.logprobs,
            wants_usage=body.wants_usage,
        )
        return await respond(request, service, wanted, formatter, body.stream is True)

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        responses={**_streamed(ChatChunk.__name__), **refusals(*WITH_BODY)},
        tags=["openai"],
    )
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        service = get_service()
        service.check_model(body.model)
        wanted = chat_request(body)
        formatter = ChatFormatter(
            f"chatcmpl-{uuid.uuid4().hex}",
            int(time.time()),
            service.model_name,
            service.tokenizer,
            wants_logprobs=wanted.logprobs is not None,
            wants_usage=body.wants_usage,
        )
        return await respond(request, service, wanted, formatter, body.stream is True)

    return router
