"""What is served, and its tokens: OpenAI's model list, and vLLM's tokenize and detokenize."""

from __future__ import annotations

from fastapi import APIRouter

from llm_ray.api.convert import conversation
from llm_ray.api.generation import encode_text, model_limits
from llm_ray.api.protocol import DetokenizeBody, DetokenizedText, ModelCard, ModelList, TokenizeBody, Tokens
from llm_ray.api.request import Conversation
from llm_ray.api.routing import COMMON, WITH_BODY, StrictJsonRoute, refusals
from llm_ray.api.service import GetService, Service
from llm_ray.errors import InvalidRequestError


def models_router(get_service: GetService) -> APIRouter:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.get("/v1/models", responses=refusals(*COMMON), tags=["openai"])
    async def models() -> ModelList:
        return ModelList(data=[_model_card(get_service())])

    @router.get("/v1/models/{model:path}", responses=refusals(*COMMON, 404), tags=["openai"])
    async def model(model: str) -> ModelCard:
        service = get_service()
        service.check_model(model)
        return _model_card(service)

    @router.post("/tokenize", responses=refusals(*WITH_BODY), tags=["tokens"])
    async def tokenize(body: TokenizeBody) -> Tokens:
        service = get_service()
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequestError("send either prompt or messages", param="prompt")
        text: str | Conversation = body.prompt if body.prompt is not None else conversation(body.messages or [])
        ids = await encode_text(text, service.tokenizer, add_special_tokens=body.add_special_tokens)
        return Tokens(tokens=ids, count=len(ids), max_model_len=model_limits(service).max_model_len)

    @router.post("/detokenize", responses=refusals(*WITH_BODY), tags=["tokens"])
    async def detokenize(body: DetokenizeBody) -> DetokenizedText:
        service = get_service()
        service.check_model(body.model)
        return DetokenizedText(prompt=service.tokenizer.decode(body.tokens, skip_special_tokens=False))

    return router


def _model_card(service: Service) -> ModelCard:
    return ModelCard(id=service.model_name, created=service.created, max_model_len=model_limits(service).max_model_len)
