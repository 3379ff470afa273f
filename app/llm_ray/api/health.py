"""Is the process alive, is the model ready, and what is the engine doing. Open to everyone: no text, no keys."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from llm_ray.api.protocol import ErrorBody
from llm_ray.api.service import GetService, Service
from llm_ray.errors import EngineUnavailableError


class Alive(BaseModel):
    status: Literal["alive"] = "alive"


class RankBody(BaseModel):
    rank: int
    pp_rank: int
    tp_rank: int
    pid: int
    node: str
    num_parameters: int
    weight_bytes: int
    attention_backend: str
    linear_backend: str


class Ready(BaseModel):
    status: Literal["ready"] = "ready"
    model: str
    max_model_len: int
    num_blocks: int
    block_size: int
    ranks: list[RankBody]


class Stats(BaseModel):
    """EngineStats, field by field; num_tasks are the asyncio tasks of this process's event loop.

    node and replica tell whose numbers these are, behind a proxy: the address of its Ray node, and Serve's id of it.
    """

    status: str
    num_waiting: int
    num_running: int
    num_blocks: int
    num_used_blocks: int
    num_free_blocks: int
    num_queried_tokens: int
    num_cached_tokens: int
    num_evicted_blocks: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_steps: int
    num_rank_restarts: int
    num_tasks: int = 0
    node: str = ""
    replica: str = ""


def health_router(get_service: GetService) -> APIRouter:
    router = APIRouter(tags=["health"])
    unavailable: dict[int | str, dict[str, Any]] = {503: {"model": ErrorBody}}

    @router.get("/healthz")
    async def healthz() -> Alive:
        return Alive()

    @router.get("/readyz", responses=unavailable)
    async def readyz() -> Ready:
        return ready(get_service())

    @router.get("/stats", responses=unavailable)
    async def stats() -> Stats:
        service = get_service()
        if service.engine.status == "starting":
            raise EngineUnavailableError("the engine is starting: retry later")
        stats = Stats.model_validate(service.engine.stats(), from_attributes=True)
        own = {"num_tasks": len(asyncio.all_tasks()), "node": service.node, "replica": service.replica}
        return stats.model_copy(update=own)

    return router


def ready(service: Service) -> Ready:
    """Raises EngineUnavailableError unless every rank has its weights, has run one step and lives."""
    engine = service.engine
    if engine.status != "ready":
        cause = f" after: {engine.last_error}" if engine.last_error else ""
        raise EngineUnavailableError(f"the engine is {engine.status}{cause}")
    info = engine.info
    return Ready(
        model=service.model_name,
        max_model_len=info.max_model_len,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        ranks=[RankBody.model_validate(rank, from_attributes=True) for rank in info.ranks],
    )
