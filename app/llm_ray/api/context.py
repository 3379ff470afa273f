"""What belongs to one HTTP request from its first byte to its last: the key's lease and the answers it opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_ray.api.auth import Lease
from llm_ray.api.errors import failure_of, send_failure
from llm_ray.api.service import GetService
from llm_ray.errors import LLMRayError

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/stats", "/docs", "/openapi.json"})
_STATE = "llm_ray"


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class RequestContext:
    """lease is None when keys are off. Whatever is in `open` is closed when the request ends, however it ends."""

    lease: Lease | None = None
    open: list[Closable] = field(default_factory=list)

    def charge(self, num_tokens: int) -> None:
        if self.lease is not None:
            self.lease.charge(num_tokens)

    def close(self) -> None:
        for each in self.open:
            each.close()
        if self.lease is not None:
            self.lease.close()


def context_of(request: Request) -> RequestContext:
    context: RequestContext = request.scope[_STATE]
    return context


class ContextMiddleware:
    """Pure ASGI middleware: admits the caller by key, except to the open paths, and cleans up after the request."""

    def __init__(self, app: ASGIApp, get_service: GetService) -> None:
        self._app = app
        self._get_service = get_service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext()
        try:
            if _path(scope) not in OPEN_PATHS:
                keys = self._get_service().keys
                context.lease = keys.enter(bearer(Headers(scope=scope).get("authorization"))) if keys else None
        except LLMRayError as error:
            await send_failure(send, failure_of(error))
            return
        scope[_STATE] = context
        try:
            await self._app(scope, receive, send)
        finally:
            context.close()


def bearer(authorization: str | None) -> str | None:
    """The secret of an Authorization header, or None."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None


def _path(scope: Scope) -> str:
    """The path below the prefix at which the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
