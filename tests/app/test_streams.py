"""Server-sent events byte by byte, and clients that leave: nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from typing import Any

import pytest

from llm_ray.executor.fake import answer
from llm_ray.tokenizer import Tokenizer
from tests.app.front import MODEL, Front, call, front, serving, wait_for

CHAT = [{"role": "user", "content": "Say something"}]


def events(body: bytes) -> list[Any]:
    """The events' data; the last one is the word DONE."""
    parts = body.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def test_a_streamed_chat_has_exactly_openais_chunks(in_process: Front, tokenizer: Tokenizer) -> None:
    body = {
        "model": MODEL,
        "messages": CHAT,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reply = await call(in_process.app, "POST", "/v1/chat/completions", body)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(reply.body)
    head = {key: chunks[0][key] for key in ("id", "object", "created", "model")}
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", head["id"])
    assert head["object"] == "chat.completion.chunk"
    assert head["model"] == MODEL

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice], "usage": None}

    prompt = tokenizer.chat(CHAT)
    text = tokenizer.decode(answer(prompt, 3, vocab_size=tokenizer.vocab_size))
    contents = [c["choices"][0]["delta"]["content"] for c in chunks[1:-2]]
    assert "".join(contents) == text
    assert chunks[0] == chunk({"role": "assistant", "content": "", "refusal": None})
    assert chunks[1:-2] == [chunk({"content": content}) for content in contents]
    assert chunks[-2] == chunk({}, "length")
    usage = chunks[-1].pop("usage")
    assert chunks[-1] == {**head, "choices": []}
    assert usage.pop("prompt_tokens_details").keys() == {"cached_tokens"}
    assert usage == {"prompt_tokens": len(prompt), "completion_tokens": 3, "total_tokens": len(prompt) + 3}


async def test_without_stream_options_no_chunk_mentions_usage(in_process: Front) -> None:
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 3, "stream": True}
    reply = await call(in_process.app, "POST", "/v1/chat/completions", body)
    assert all("usage" not in chunk for chunk in events(reply.body))


async def test_a_streamed_completion_has_exactly_openais_chunks(in_process: Front, tokenizer: Tokenizer) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 3, "stream": True}
    reply = await call(in_process.app, "POST", "/v1/completions", body)
    chunks = events(reply.body)
    head = {key: chunks[0][key] for key in ("id", "created")}
    texts = [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
    wanted = tokenizer.decode(answer(tokenizer.encode("Once"), 3, vocab_size=tokenizer.vocab_size))
    assert "".join(texts) == wanted
    for chunk, text, finish in zip(chunks, [*texts, ""], [None] * len(texts) + ["length"], strict=True):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        assert chunk == {**head, "object": "text_completion", "model": MODEL, "choices": [choice]}


async def test_what_fails_before_the_first_token_has_a_status_of_its_own(in_process: Front) -> None:
    body = {"model": MODEL, "prompt": "x " * 600, "stream": True}
    reply = await call(in_process.app, "POST", "/v1/completions", body)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"


async def test_an_engine_that_fails_after_the_first_token_sends_an_error_event_then_done(
    tokenizer: Tokenizer,
) -> None:
    with front(tokenizer, step_s=0.01) as made:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 300, "stream": True}
        request = asyncio.create_task(call(made.app, "POST", "/v1/completions", body))
        while made.engine.stats().num_generated_tokens < 3:
            await asyncio.sleep(0.005)
        made.executor.fail()
        reply = await request
    assert reply.status == 200
    chunks = events(reply.body)
    assert chunks[-1]["error"]["code"] == "engine_unavailable"
    assert chunks[-1]["error"].keys() == {"message", "type", "param", "code"}
    assert all("error" not in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(tokenizer: Tokenizer, stream: bool, num_choices: int) -> None:
    with serving(tokenizer, step_s=0.02) as server:
        connection = send_raw(server.url, {"max_tokens": 450, "stream": stream, "n": num_choices})
        wait_for(lambda: server.engine.stats().num_running == num_choices)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        connection.close()
        wait_for(lambda: server.engine.num_open == 0)
        wait_for(lambda: server.engine.stats().num_used_blocks == 0)
        assert server.engine.stats().num_generated_tokens < 450 * num_choices


def test_a_client_that_leaves_while_it_waits_is_never_run(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, step_s=0.02, engine={"max_num_seqs": 1, "max_num_batched_tokens": 64}) as server:
        first = send_raw(server.url, {"max_tokens": 450, "stream": True})
        wait_for(lambda: server.engine.stats().num_running == 1)
        second = send_raw(server.url, {"max_tokens": 5})
        wait_for(lambda: server.engine.stats().num_waiting == 1)
        second.close()
        wait_for(lambda: server.engine.num_open == 1)
        first.close()
        wait_for(lambda: server.engine.num_open == 0)


async def test_a_cancelled_request_is_aborted(tokenizer: Tokenizer) -> None:
    """As Serve does it when its proxy sees the client go."""
    with front(tokenizer, step_s=0.01) as made:
        for stream in (True, False):
            body = {"model": MODEL, "prompt": "a", "max_tokens": 450, "stream": stream, "n": 2}
            request = asyncio.create_task(call(made.app, "POST", "/v1/completions", body))
            while made.engine.stats().num_running < 2:
                await asyncio.sleep(0.005)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            while made.engine.num_open:
                await asyncio.sleep(0.005)
        others = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert not others


def test_many_streams_of_which_some_break_off_leave_nothing_behind(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, step_s=0.002) as server:
        bodies: list[bytes] = []

        def one(i: int) -> None:
            connection = send_raw(server.url, {"max_tokens": 40, "stream": True, "prompt": f"prompt {i}"})
            if i % 5 == 0:
                connection.recv(512)
                connection.close()
            else:
                bodies.append(read_all(connection))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(bodies) == 48
        assert all(b"data: [DONE]" in body for body in bodies)
        wait_for(lambda: server.engine.num_open == 0)
        wait_for(lambda: server.engine.stats().num_used_blocks == 0)


def send_raw(url: str, fields: dict[str, Any]) -> socket.socket:
    """POST a completion and leave the connection to the caller."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"model": MODEL, "prompt": "a", **fields}).encode()
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))
