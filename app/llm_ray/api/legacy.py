"""POST /llm_backend: a prompt in, the generated text out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from llm_ray.api.choice import ChoiceDelta
from llm_ray.api.generation import Usage
from llm_ray.api.protocol import LegacyAnswer, LegacyBody
from llm_ray.api.request import GenerateRequest
from llm_ray.api.respond import respond
from llm_ray.api.routing import WITH_BODY, StrictJsonRoute, refusals
from llm_ray.api.service import GetService


class LegacyFormatter:
    """This route does not stream."""

    def chunks(self, delta: ChoiceDelta) -> list[BaseModel]:
        return []

    def usage_chunk(self, usage: Usage) -> None:
        return None

    def whole(self, deltas: list[ChoiceDelta], usage: Usage) -> LegacyAnswer:
        return LegacyAnswer(generated_text="".join(delta.text for delta in deltas))


def legacy_router(get_service: GetService) -> APIRouter:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/llm_backend", response_model=LegacyAnswer, responses=refusals(*WITH_BODY), tags=["legacy"])
    async def llm_backend(request: Request, body: LegacyBody) -> Response:
        wanted = GenerateRequest(
            prompts=(body.prompt,),
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        )
        return await respond(request, get_service(), wanted, LegacyFormatter(), stream=False)

    return router
