"""From an Answer to an HTTP response: whole or as server-sent events, and nothing left behind when the client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from llm_ray.api.choice import ChoiceDelta
from llm_ray.api.context import context_of
from llm_ray.api.errors import failure_of
from llm_ray.api.generation import Answer, Usage
from llm_ray.api.protocol import PromptTokensDetails, UsageBody
from llm_ray.api.request import GenerateRequest
from llm_ray.api.service import Service
from llm_ray.errors import LLMRayError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
# A stream's own deadline speaks first; this one cuts clients that no longer read.
_SEND_GRACE_S = 5.0


class ClientGoneError(Exception):
    """Nobody is left to answer."""


class AnswerFormatter(Protocol):
    """One route's shapes. It belongs to one answer."""

    def chunks(self, delta: ChoiceDelta) -> Iterable[BaseModel]:
        """The stream's chunks for one delta."""
        ...

    def usage_chunk(self, usage: Usage) -> BaseModel | None:
        """The last chunk, when the client asked for it."""
        ...

    def whole(self, deltas: list[ChoiceDelta], usage: Usage) -> BaseModel:
        """The response of a request that does not stream."""
        ...


async def respond(
    request: Request, service: Service, wanted: GenerateRequest, formatter: AnswerFormatter, stream: bool
) -> Response:
    """Answer, watching the client. The first delta is awaited here, so what fails before it has a proper status."""
    context = context_of(request)
    answer = Answer(service, wanted, context.charge)
    context.open.append(answer)
    if stream:
        first = await until_disconnect(request.receive, _first(answer))
        return EventStream(answer, first, formatter)
    deltas = await until_disconnect(request.receive, _all(answer))
    return json_response(formatter.whole(deltas, answer.usage))


def json_response(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run the work; cancel it when the client leaves. Raises ClientGoneError then."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """Server-sent events. An error once the stream has begun is an event of its own, then [DONE]."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, first: ChoiceDelta | None, formatter: AnswerFormatter) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer = answer
        self._first = first
        self._formatter = formatter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.create_task(self._write(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            timeout = self._answer.remaining_s + _SEND_GRACE_S
            await asyncio.wait((writer, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            self._answer.close()
            await _cancel(writer, gone)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            delta = self._first
            while delta is not None:
                await _send(send, b"".join(map(_event, self._formatter.chunks(delta))))
                delta = await self._answer.next()
            usage = self._formatter.usage_chunk(self._answer.usage)
            await _send(send, (_event(usage) if usage is not None else b"") + DONE, last=True)
        except LLMRayError as error:
            body = json.dumps(failure_of(error).body()).encode()
            await _send(send, b"data: " + body + b"\n\n" + DONE, last=True)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_completion_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.num_cached_tokens),
    )


async def _first(answer: Answer) -> ChoiceDelta | None:
    await answer.start()
    return await answer.next()


async def _all(answer: Answer) -> list[ChoiceDelta]:
    await answer.start()
    deltas: list[ChoiceDelta] = []
    while (delta := await answer.next()) is not None:
        deltas.append(delta)
    return deltas


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _event(body: BaseModel) -> bytes:
    # fields that a chunk does not set are absent, null ones are sent: OpenAI's clients tell the two apart
    return b"data: " + body.model_dump_json(exclude_unset=True).encode() + b"\n\n"


async def _send(send: Send, body: bytes, *, last: bool = False) -> None:
    if body or last:
        await send({"type": "http.response.body", "body": body, "more_body": not last})
