"""gRPC `llmray.v1.Inference` on the same generation as HTTP. Knows neither Serve nor a server.

Errors set code and details on the context and are raised on: Serve's proxy takes both from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
from pydantic import ValidationError
from pydantic_core import from_json

from llm_ray.api.choice import ChoiceDelta
from llm_ray.api.context import RequestContext, bearer
from llm_ray.api.convert import chat_request, completion_request
from llm_ray.api.errors import failure_of, validation_failure
from llm_ray.api.generation import Answer, Usage
from llm_ray.api.proto.llmray.v1 import inference_pb2 as pb
from llm_ray.api.protocol import UNSUPPORTED_FIELDS
from llm_ray.api.protocol_chat import ChatBody
from llm_ray.api.protocol_completions import CompletionBody
from llm_ray.api.request import GenerateRequest
from llm_ray.api.service import GetService, Service
from llm_ray.errors import InvalidRequestError, LLMRayError

_FINISH = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
_SAMPLING_FIELDS = tuple(pb.Sampling.DESCRIPTOR.fields_by_name)


class GrpcContext(Protocol):
    """What is used of grpc.ServicerContext, and of Serve's RayServegRPCContext."""

    def invocation_metadata(self) -> Iterable[tuple[str, Any]]: ...

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...


class InferenceServicer:
    """The service's three methods. An abandoned GenerateStream must be closed (`aclose`), as for any generator."""

    def __init__(self, get_service: GetService) -> None:
        self._get_service = get_service

    async def Generate(self, request: pb.GenerateRequest, grpc_context: GrpcContext) -> pb.GenerateResponse:
        with self._call(grpc_context) as (service, context):
            answer = _answer(service, context, request)
            await answer.start()
            text, finish = "", ""
            while (delta := await answer.next()) is not None:
                text += delta.text
                finish = delta.finish_reason or finish
            return pb.GenerateResponse(
                text=text, finish_reason=_FINISH[finish], usage=_usage(answer.usage), model=service.model_name
            )

    async def GenerateStream(
        self, request: pb.GenerateRequest, grpc_context: GrpcContext
    ) -> AsyncIterator[pb.GenerateChunk]:
        with self._call(grpc_context) as (service, context):
            answer = _answer(service, context, request)
            await answer.start()
            while (delta := await answer.next()) is not None:
                yield _chunk(delta, answer)

    async def Health(self, request: pb.HealthRequest, grpc_context: GrpcContext) -> pb.HealthResponse:
        try:
            service = self._get_service()
        except LLMRayError:
            return pb.HealthResponse(ready=False, status="starting")
        status = service.engine.status
        return pb.HealthResponse(ready=status == "ready", status=status, model=service.model_name)

    @contextmanager
    def _call(self, grpc_context: GrpcContext) -> Any:
        """Admit the caller; afterwards close what was opened, and tell the client of an error."""
        context = RequestContext()
        try:
            service = self._get_service()
            if service.keys is not None:
                metadata = dict(grpc_context.invocation_metadata() or ())
                context.lease = service.keys.enter(bearer(metadata.get("authorization")))
            yield service, context
        except LLMRayError as error:
            failure = failure_of(error)
            grpc_context.set_code(getattr(grpc.StatusCode, failure.grpc))
            grpc_context.set_details(failure.message)
            raise
        finally:
            context.close()


def _answer(service: Service, context: RequestContext, request: pb.GenerateRequest) -> Answer:
    service.check_model(request.model or None)
    answer = Answer(service, _request(request), context.charge)
    context.open.append(answer)
    return answer


def _request(request: pb.GenerateRequest) -> GenerateRequest:
    """By way of the HTTP bodies, so that ranges and refusals are the same. Raises InvalidRequestError."""
    body = {"model": "", "stop": list(request.stop), "ignore_eos": request.ignore_eos, **_sampling(request.sampling)}
    body |= _answer_format(request)
    if request.HasField("max_tokens"):
        body["max_tokens"] = request.max_tokens
    kind = request.WhichOneof("input")
    try:
        if kind == "chat":
            messages = [{"role": m.role, "content": m.content} for m in request.chat.messages]
            return chat_request(ChatBody.model_validate({**body, "messages": messages}))
        prompt = list(request.token_ids.ids) if kind == "token_ids" else request.prompt
        return completion_request(CompletionBody.model_validate({**body, "prompt": prompt}))
    except ValidationError as error:
        located = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        failure = validation_failure(located, UNSUPPORTED_FIELDS)
        raise InvalidRequestError(failure.message, param=failure.param) from error


def _sampling(sampling: pb.Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in _SAMPLING_FIELDS if sampling.HasField(name)}


def _answer_format(request: pb.GenerateRequest) -> dict[str, Any]:
    kind = request.WhichOneof("answer_format")
    if kind == "regex":
        return {"guided_regex": request.regex}
    if kind == "json_object" and request.json_object:
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema":
        try:
            schema = from_json(request.json_schema, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidRequestError(f"json_schema is not valid JSON: {error}", param="json_schema") from error
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
    return {}


def _chunk(delta: ChoiceDelta, answer: Answer) -> pb.GenerateChunk:
    if delta.finish_reason is None:
        return pb.GenerateChunk(text=delta.text)
    return pb.GenerateChunk(text=delta.text, finish_reason=_FINISH[delta.finish_reason], usage=_usage(answer.usage))


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_completion_tokens,
        cached_tokens=usage.num_cached_tokens,
    )
