"""What a request may ask of the front: body size and type, time to send it, number of choices."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_ray.api.errors import BodyTooLargeError, MediaTypeError, RequestTimeoutError, failure_of, send_failure
from llm_ray.api.request import GenerateRequest
from llm_ray.api.service import GetService, Service
from llm_ray.errors import InvalidRequestError, LLMRayError

BODY_TIMEOUT_S = 60.0


def check_num_choices(request: GenerateRequest, service: Service) -> None:
    """Raises InvalidRequestError for what could never be admitted, however idle the server is."""
    max_choices = service.server_config.max_choices
    if request.n > max_choices:
        raise InvalidRequestError(f"n ({request.n}) exceeds max_choices ({max_choices})", param="n")
    num_sequences = request.n * len(request.prompts)
    limit = service.engine_config.max_num_seqs + service.server_config.max_queue_len
    if num_sequences > limit:
        raise InvalidRequestError(
            f"{len(request.prompts)} prompts with {request.n} choices each are {num_sequences} sequences, but at most "
            f"{limit} can wait and run (max_num_seqs + max_queue_len): send fewer prompts at a time",
            param=request.prompt_param,
        )


class BodyLimit:
    """Pure ASGI middleware: reads the body of every POST, up to max_body_bytes, and hands it on in one piece.

    Anything larger, slower or not JSON is refused before a route sees it.
    """

    def __init__(self, app: ASGIApp, get_service: GetService) -> None:
        self._app = app
        self._get_service = get_service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except LLMRayError as error:
            await send_failure(send, failure_of(error))
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The body, or None when the client left before it was complete."""
        limit = self._get_service().server_config.max_body_bytes
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > limit:
            raise _too_large(limit)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise MediaTypeError(f"content-type is {media_type[:80]!r}: send 'Content-Type: application/json'")
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await _collect(receive, limit)
        except TimeoutError as error:
            raise RequestTimeoutError(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error


async def _collect(receive: Receive, limit: int) -> bytes | None:
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than max_body_bytes ({limit}): send less at a time")
