"""What routes have in common: how bodies are read (strict JSON, never an internal error) and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from llm_ray.api.protocol import ErrorBody

Responses = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Responses:
    """How a route may refuse, for OpenAPI."""
    return {status: {"model": ErrorBody} for status in statuses}


COMMON = (400, 401, 429, 503)
WITH_BODY = (*COMMON, 404, 408, 413, 415)


class StrictJsonRequest(Request):
    """Refuses NaN, lone surrogates, endless nesting and endless digits where the standard parser would not."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class StrictJsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return strict
