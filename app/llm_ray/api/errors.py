"""Exceptions to HTTP and gRPC: one table, and OpenAI's body. Knows no routes."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from llm_ray.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    LLMRayError,
    QueueFullError,
)

log = logging.getLogger(__name__)


class AuthenticationError(LLMRayError):
    """No API key, or one that is not in the file (HTTP 401)."""


class RateLimitError(LLMRayError):
    """The key's own budget is used up (HTTP 429 with Retry-After)."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotFoundError(LLMRayError):
    """The request names a model that is not served here (HTTP 404)."""


class BodyTooLargeError(LLMRayError):
    """The body exceeds max_body_bytes (HTTP 413)."""


class MediaTypeError(LLMRayError):
    """The body is not JSON (HTTP 415)."""


class RequestTimeoutError(LLMRayError):
    """The request's deadline passed (HTTP 408, as Ray Serve answers its own)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told. `grpc` is the name of a grpc.StatusCode."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    grpc: str = "INTERNAL"

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def json(self) -> bytes:
        return json.dumps(self.body()).encode()


# exception → (status, OpenAI type, OpenAI code, gRPC status); looked up along the class's ancestors
_TABLE: dict[type[LLMRayError], tuple[int, str, str | None, str]] = {
    InvalidRequestError: (400, "invalid_request_error", None, "INVALID_ARGUMENT"),
    AuthenticationError: (401, "authentication_error", "invalid_api_key", "UNAUTHENTICATED"),
    ModelNotFoundError: (404, "invalid_request_error", "model_not_found", "NOT_FOUND"),
    RequestTimeoutError: (408, "timeout_error", "request_timeout", "DEADLINE_EXCEEDED"),
    BodyTooLargeError: (413, "invalid_request_error", "body_too_large", "RESOURCE_EXHAUSTED"),
    MediaTypeError: (415, "invalid_request_error", "unsupported_media_type", "INVALID_ARGUMENT"),
    RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"),
    QueueFullError: (429, "overloaded_error", "queue_full", "RESOURCE_EXHAUSTED"),
    EngineUnavailableError: (503, "service_unavailable_error", "engine_unavailable", "UNAVAILABLE"),
}
_STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}


def failure_of(error: BaseException) -> Failure:
    """What to tell the client about any exception. One that is not ours is logged, and told without its details."""
    for cls in type(error).__mro__:
        if cls in _TABLE:
            return _known(error, *_TABLE[cls])
    log.error("event=internal_error error=%r", error, exc_info=error)
    return Failure(500, "server_error", "internal_error", "internal error: see the server's log")


def _known(error: BaseException, status: int, type: str, code: str | None, grpc: str) -> Failure:
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return Failure(
        status=status,
        type=type,
        code=getattr(error, "code", None) or code,
        message=str(error),
        param=getattr(error, "param", None),
        headers=headers,
        grpc=grpc,
    )


def http_failure(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Failure:
    """For what the web framework itself refuses: unknown path, wrong method, unreadable JSON."""
    return Failure(
        status=status,
        type="invalid_request_error" if status < 500 else "server_error",
        code=_STATUS_CODES.get(status),
        message=detail,
        headers=dict(headers or {}),
    )


def validation_failure(errors: Sequence[Mapping[str, Any]], unsupported: frozenset[str]) -> Failure:
    """One of pydantic's errors, naming the field. unsupported: OpenAI's fields that this server refuses."""
    # of a union's members the one that got furthest is what the client meant
    same_field = [e for e in errors if e["loc"][:2] == errors[0]["loc"][:2]]
    error = max(same_field, key=lambda e: len(e["loc"]))
    param = param_of(error["loc"])
    code: str | None = None
    if error["type"] == "extra_forbidden":
        refused = re.sub(r"\[\d+\]", "", param or "") in unsupported
        code = "unsupported_parameter" if refused else "unknown_parameter"
        message = f"{param} is not {'supported by this server: leave it out' if refused else 'a known field'}"
    elif error["type"] == "json_invalid":
        param, message = None, f"the body is not valid JSON: {error['ctx']['error']}"
    else:
        message = f"{param or 'body'}: {error['msg']}"
    return Failure(400, "invalid_request_error", code, message, param)


# pydantic puts the tried member of a union into the path: not part of the client's JSON
_UNION_TAG = re.compile(r"str|int|float|bool|none|(list|dict|constrained|literal|function)\W.*")


def param_of(loc: Sequence[str | int]) -> str | None:
    """pydantic's path as clients write it: ("body", "messages", 0, "content", "str") → messages[0].content"""
    path = ""
    for before, step in itertools.pairwise(loc):
        if isinstance(step, int):
            path += f"[{step}]"
        elif before != "response_format" and (before == "body" or not _UNION_TAG.fullmatch(step)):
            path += f".{step}" if path else step
    return path[:200] or None


async def send_failure(send: Send, failure: Failure) -> None:
    """Answer from a middleware, before there is any response."""
    headers = {"content-type": "application/json", **failure.headers}
    body = failure.json()
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": failure.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
