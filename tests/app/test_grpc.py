"""llmray.v1.Inference over a real gRPC server on loopback, with the servicer that Serve's deployment delegates to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from llm_ray.api.grpc_servicer import InferenceServicer
from llm_ray.api.proto.llmray.v1 import inference_pb2 as pb
from llm_ray.api.proto.llmray.v1.inference_pb2_grpc import InferenceStub, add_InferenceServicer_to_server
from llm_ray.errors import LLMRayError
from llm_ray.executor.fake import answer
from llm_ray.tokenizer import Tokenizer
from tests.app.front import MODEL, Front, front
from tests.app.test_auth import entry, write_keys


class AsServeCallsIt:
    """Serve answers with the code and details that a failed method left on its context."""

    def __init__(self, servicer: InferenceServicer) -> None:
        self._servicer = servicer

    async def Generate(self, request: Any, context: Any) -> Any:
        try:
            return await self._servicer.Generate(request, context)
        except LLMRayError:
            await context.abort(context.code(), context.details())

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for chunk in self._servicer.GenerateStream(request, context):
                yield chunk
        except LLMRayError:
            await context.abort(context.code(), context.details())

    async def Health(self, request: Any, context: Any) -> Any:
        return await self._servicer.Health(request, context)


@asynccontextmanager
async def stub(made: Front) -> AsyncIterator[InferenceStub]:
    server = grpc.aio.server()
    add_InferenceServicer_to_server(AsServeCallsIt(InferenceServicer(lambda: made.service)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield InferenceStub(channel)
    await server.stop(0)


async def test_generate_gives_the_text_and_its_usage(in_process: Front, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("Once upon")
    wanted = tokenizer.decode(answer(prompt, 6, vocab_size=tokenizer.vocab_size))
    async with stub(in_process) as client:
        for given in ({"prompt": "Once upon"}, {"token_ids": pb.TokenIds(ids=prompt)}):
            reply = await client.Generate(pb.GenerateRequest(max_tokens=6, **given))
            assert reply.text == wanted
            assert reply.finish_reason == pb.FINISH_REASON_LENGTH
            assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(prompt), 6)
            assert reply.model == MODEL


async def test_a_stream_adds_up_to_the_whole_answer(in_process: Front, tokenizer: Tokenizer) -> None:
    chat = pb.Chat(messages=[pb.Message(role="user", content="hi")])
    request = pb.GenerateRequest(chat=chat, max_tokens=20, sampling=pb.Sampling(seed=4))
    async with stub(in_process) as client:
        whole = await client.Generate(request)
        chunks = [chunk async for chunk in client.GenerateStream(request)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    prompt = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert whole.text == tokenizer.decode(answer(prompt, 20, seed=4, vocab_size=tokenizer.vocab_size))
    assert [chunk.HasField("usage") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage.completion_tokens == 20


async def test_without_max_tokens_the_defaults_are_those_of_the_http_api(in_process: Front) -> None:
    chat = pb.Chat(messages=[pb.Message(role="user", content="a")])
    async with stub(in_process) as client:
        prompted = await client.Generate(pb.GenerateRequest(prompt="a", ignore_eos=True))
        chatted = await client.Generate(pb.GenerateRequest(chat=chat, ignore_eos=True))
    assert prompted.usage.completion_tokens == 16
    assert chatted.usage.prompt_tokens + chatted.usage.completion_tokens == 512


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"prompt": ""}, "INVALID_ARGUMENT", "empty"),
        ({}, "INVALID_ARGUMENT", "empty"),
        ({"prompt": "a", "max_tokens": 0}, "INVALID_ARGUMENT", "max_tokens"),
        ({"prompt": "a", "sampling": pb.Sampling(temperature=9)}, "INVALID_ARGUMENT", "temperature"),
        ({"prompt": "a", "sampling": pb.Sampling(top_p=float("nan"))}, "INVALID_ARGUMENT", "top_p"),
        ({"prompt": "a", "json_schema": "{"}, "INVALID_ARGUMENT", "json_schema"),
        ({"prompt": "a", "json_schema": "[]"}, "INVALID_ARGUMENT", "schema"),
        ({"prompt": "a", "regex": "("}, "INVALID_ARGUMENT", "guided_regex"),
        ({"prompt": "a ", "stop": [""]}, "INVALID_ARGUMENT", "stop"),
        ({"chat": pb.Chat(messages=[pb.Message(role="tool", content="x")])}, "INVALID_ARGUMENT", "role"),
        ({"prompt": "a", "model": "other"}, "NOT_FOUND", "other"),
    ],
)
async def test_bad_requests_have_a_code_and_a_reason(
    in_process: Front, fields: dict[str, Any], code: str, words: str
) -> None:
    async with stub(in_process) as client:
        for method in (client.Generate(pb.GenerateRequest(**fields)), first(client, pb.GenerateRequest(**fields))):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method
            assert refused.value.code() is getattr(grpc.StatusCode, code)
            assert words in refused.value.details()


async def first(client: InferenceStub, request: pb.GenerateRequest) -> Any:
    async for chunk in client.GenerateStream(request):
        return chunk


async def test_health_tells_readiness_and_never_fails(tokenizer: Tokenizer) -> None:
    with front(tokenizer) as made:
        async with stub(made) as client:
            reply = await client.Health(pb.HealthRequest())
            assert (reply.ready, reply.status, reply.model) == (True, "ready", MODEL)
            await asyncio.to_thread(made.engine.shutdown, 0.0)
            reply = await client.Health(pb.HealthRequest())
            assert (reply.ready, reply.status) == (False, "stopped")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.Generate(pb.GenerateRequest(prompt="a"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_cancels_frees_its_blocks(tokenizer: Tokenizer) -> None:
    with front(tokenizer, step_s=0.01) as made:
        async with stub(made) as client:
            stream = client.GenerateStream(pb.GenerateRequest(prompt="a", max_tokens=400))
            await stream.read()
            stream.cancel()
            unary = client.Generate(pb.GenerateRequest(prompt="a", max_tokens=400))
            while made.engine.num_open < 1:
                await asyncio.sleep(0.005)
            unary.cancel()
            async with asyncio.timeout(10):
                while made.engine.num_open or made.engine.stats().num_used_blocks:
                    await asyncio.sleep(0.005)
            assert made.engine.stats().num_generated_tokens < 400


async def test_keys_and_their_budgets_hold_for_grpc_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.yaml", entry("a", "s", tokens_per_minute=5))
    with front(tokenizer, api_keys_file=str(tmp_path / "keys.yaml")) as made:
        async with stub(made) as client:
            await client.Health(pb.HealthRequest())
            request = pb.GenerateRequest(prompt="a", max_tokens=9)
            for metadata in ((), (("authorization", "Bearer wrong"),)):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await client.Generate(request, metadata=metadata)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            await client.Generate(request, metadata=(("authorization", "Bearer s"),))
            with pytest.raises(grpc.aio.AioRpcError) as limited:
                await client.Generate(request, metadata=(("authorization", "Bearer s"),))
            assert limited.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
