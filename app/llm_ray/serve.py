"""The Ray Serve application: one deployment whose replica holds API, tokenizer and engine, and whose ranks are actors.

One hop from the proxy to the engine; the replica's placement group holds its ranks. With placement_strategy GANG the
replica is an actor alone, on a gang's first host, and places its ranks within that gang itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingPolicy, RequestRouterConfig
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_ray.api.app import create_app
from llm_ray.api.grpc_servicer import InferenceServicer
from llm_ray.api.service import build_service
from llm_ray.capacity import FRONT_HOST, CapacityPolicy
from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig, parse
from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.errors import ConfigError, EngineUnavailableError
from llm_ray.executor.rank import MakeWorker, make_worker
from llm_ray.executor.ray import RayExecutor
from llm_ray.executor.ray_gang import gang_placement
from llm_ray.executor.ray_group import bundle, node_ip
from llm_ray.naming import HOST_NODE_LABEL
from llm_ray.tokenizer import Tokenizer

log = logging.getLogger("llm_ray.serve")

APP_NAME = "llm"
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/stats"})
SECTIONS = ("engine", "server", "deployment")
# Far above what max_num_seqs + max_queue_len let in: our own 429 decides, with its Retry-After and OpenAI's body.
MIN_ONGOING_REQUESTS = 10_000
MAX_QUEUED_REQUESTS = 10_000
STOP_WAIT_LOOP_S = 0.5


@serve.deployment(name="LLM")
@serve.ingress()
class LLM(InferenceServicer):
    """One replica: HTTP by the FastAPI app, gRPC by the methods it inherits.

    Ready means: weights loaded, cache sized and one warm-up step run on every rank.
    """

    def __init__(
        self,
        engine: EngineConfig,
        server: ServerConfig,
        deployment: DeploymentConfig,
        make: MakeWorker = make_worker,
    ) -> None:
        _log_to_stderr()
        if deployment.placement_strategy == "GANG":
            executor = RayExecutor(engine, gang_placement(engine, _front(deployment)), first_bundle=0, make=make)
        else:
            executor = RayExecutor(engine, ray.util.get_current_placement_group(), make=make)
        self._engine = AsyncEngine(engine, executor, max_queue_len=server.max_queue_len)
        super().__init__(lambda: self._service)
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(self._engine.start)  # the ranks load while the tokenizer does
            with without_torch():
                tokenizer = Tokenizer(engine.model)
            replica = serve.get_replica_context().replica_id.unique_id
            self._service = build_service(self._engine, tokenizer, engine, server, node=node_ip(), replica=replica)
            started.result()

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = create_app(lambda: self._service)
        app.add_middleware(RequestLog)
        return app

    def check_health(self) -> None:
        """Called by Serve; raising makes it replace this replica. An engine that rebuilds its ranks is healthy."""
        if not self._engine.healthy:
            raise EngineUnavailableError(f"the engine is {self._engine.status}: {self._engine.last_error}")

    async def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            await asyncio.to_thread(engine.shutdown, 0.0)


class RequestLog:
    """Pure ASGI middleware: one line per request when it is over, with the id that the proxy gave it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            headers = Headers(scope=scope)
            log.info(
                "event=request request_id=%s method=%s path=%s status=%d seconds=%.3f",
                headers.get("x-request-id", "-"),
                scope["method"],
                quote(scope["path"]),
                status,
                time.monotonic() - began,
            )


def build(args: Mapping[str, Any]) -> serve.Application:
    """The application for Serve's `import_path: llm_ray.serve:build`.

    args: sections engine, server and deployment, each with the fields of its dataclass in `llm_ray.config`.
    Raises ConfigError by name for an unknown section or key and for impossible values.
    """
    for section in args:
        if section not in SECTIONS:
            raise ConfigError(f"unknown section {section!r}; known: {', '.join(SECTIONS)}")
    engine = parse(EngineConfig, args.get("engine", {}))
    server = parse(ServerConfig, args.get("server", {}))
    deployment = parse(DeploymentConfig, args.get("deployment", {}))
    if not engine.model:
        raise ConfigError("engine.model is empty: give the directory of a Hugging Face checkpoint")
    app: serve.Application = LLM.options(**options(engine, server, deployment)).bind(engine, server, deployment)  # type: ignore[attr-defined]
    return app


def options(engine: EngineConfig, server: ServerConfig, deployment: DeploymentConfig) -> dict[str, Any]:
    """Serve's options for the deployment. Every one that would restart replicas when added later is set."""
    admitted = engine.max_num_seqs + server.max_queue_len
    return {
        **_placement(engine, deployment),
        "max_ongoing_requests": max(MIN_ONGOING_REQUESTS, 4 * admitted),
        "max_queued_requests": MAX_QUEUED_REQUESTS,
        "backpressure_config": {"status_code": 429, "retry_after_s": 1},
        "autoscaling_config": _autoscaling(engine, deployment),
        "request_router_config": RequestRouterConfig(),
        "max_constructor_retry_count": deployment.max_start_attempts,
        "graceful_shutdown_wait_loop_s": STOP_WAIT_LOOP_S,
        "graceful_shutdown_timeout_s": deployment.drain_timeout_s,
        "health_check_period_s": deployment.health_check_period_s,
        "health_check_timeout_s": deployment.health_check_timeout_s,
        "logging_config": {"enable_access_log": False},
    }


def _placement(engine: EngineConfig, deployment: DeploymentConfig) -> dict[str, Any]:
    """A placement group of the front and its ranks, or in a gang the front alone: one on each gang's first host."""
    actor: dict[str, Any] = {"num_cpus": deployment.replica_num_cpus}
    if deployment.placement_strategy == "GANG":
        return {
            "ray_actor_options": actor | {"label_selector": {HOST_NODE_LABEL: FRONT_HOST}},
            "max_replicas_per_node": 1,
        }
    return {
        "ray_actor_options": actor,
        "placement_group_bundles": [_front(deployment)] + [bundle(engine)] * engine.world_size,
        "placement_group_strategy": deployment.placement_strategy,
    }


def _autoscaling(engine: EngineConfig, deployment: DeploymentConfig) -> dict[str, Any]:
    config: dict[str, Any] = {
        "min_replicas": deployment.min_replicas,
        "max_replicas": deployment.max_replicas,
        "target_ongoing_requests": deployment.target_ongoing_requests,
        "upscale_delay_s": deployment.upscale_delay_s,
        "downscale_delay_s": deployment.downscale_delay_s,
    }
    if deployment.autoscaling_policy == "requests":
        return config
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function=f"{CapacityPolicy.__module__}:{CapacityPolicy.__name__}",
        policy_kwargs={
            "placement": deployment.placement_strategy,
            "front": _front(deployment),
            "rank": bundle(engine),
            "ranks": engine.world_size,
        },
    )
    # Nodes that come or go are a fact and no trend: to wait would start what has no room, or leave room unused.
    return config | {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0, "policy": policy}


def _front(deployment: DeploymentConfig) -> dict[str, float]:
    return {"CPU": deployment.replica_num_cpus}


@contextmanager
def without_torch() -> Iterator[None]:
    """transformers imports torch wherever it finds it, even for a tokenizer: 5 CPU seconds and 600 MB for nothing."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _log_to_stderr() -> None:
    """Ray forwards a replica's stderr to its log files and, where asked to, to the driver."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"))
    logger = logging.getLogger("llm_ray")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
