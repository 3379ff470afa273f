"""The FastAPI app: routes, middleware and one error shape. Built before the engine exists; it asks for the service."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from llm_ray import __version__
from llm_ray.api.context import ContextMiddleware
from llm_ray.api.errors import Failure, failure_of, http_failure, validation_failure
from llm_ray.api.health import health_router
from llm_ray.api.legacy import legacy_router
from llm_ray.api.limits import BodyLimit
from llm_ray.api.models import models_router
from llm_ray.api.openai import openai_router
from llm_ray.api.protocol import UNSUPPORTED_FIELDS
from llm_ray.api.respond import ClientGoneError
from llm_ray.api.service import GetService
from llm_ray.errors import LLMRayError

# nginx's number for a client that left; nobody reads it, access logs do
CLIENT_CLOSED_REQUEST = 499


def create_app(get_service: GetService) -> FastAPI:
    """get_service is asked on every request, and may raise EngineUnavailableError until there is a service."""
    app = FastAPI(title="llm-ray", version=__version__, redoc_url=None, redirect_slashes=False)
    app.include_router(openai_router(get_service))
    app.include_router(models_router(get_service))
    app.include_router(legacy_router(get_service))
    app.include_router(health_router(get_service))
    # the last one added is the outermost: no body is read for a caller without a key
    app.add_middleware(BodyLimit, get_service=get_service)
    app.add_middleware(ContextMiddleware, get_service=get_service)
    app.add_exception_handler(LLMRayError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(Exception, _on_error)
    _drop_422(app)
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    return _response(failure_of(error))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(validation_failure(error.errors(), UNSUPPORTED_FIELDS))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    return _response(http_failure(error.status_code, detail, error.headers))


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _response(failure: Failure) -> Response:
    return Response(failure.json(), failure.status, headers=dict(failure.headers), media_type="application/json")


def _drop_422(app: FastAPI) -> None:
    """FastAPI documents 422 for every body; here invalid bodies get 400, which the routes document themselves."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        schema = build()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema.get("components", {}).get("schemas", {}).pop(unused, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
