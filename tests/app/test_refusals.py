"""What is refused, with which status and in which words: always OpenAI's error body, never a 500."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

import pytest

from llm_ray.api.app import create_app
from llm_ray.errors import EngineUnavailableError
from llm_ray.tokenizer import Tokenizer
from tests.app.front import MODEL, Front, call, front, serving, wait_for

CHAT = [{"role": "user", "content": "hi"}]
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"

BAD_COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 512}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 129}, "n"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 1e-40}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"\u0663": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"unknown": 1}, "unknown"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
    ({"guided_regex": "(", "max_tokens": 4}, "guided_regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"prompt": ["a"] * 400}, "prompt"),
]

BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
    ({"tools": []}, "tools"),
    ({"functions": []}, "functions"),
    ({"modalities": ["text"]}, "modalities"),
    ({"audio": {}}, "audio"),
    ({"store": True}, "store"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"logprobs": 2}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens"),
    ({"max_completion_tokens": 512}, "max_completion_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS, ids=lambda value: json.dumps(value)[:60])
async def test_a_bad_completion_field_is_refused_by_name(
    in_process: Front, fields: dict[str, Any], param: str | None
) -> None:
    reply = await call(in_process.app, "POST", COMPLETIONS, {"model": MODEL, "prompt": "a", **fields})
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param
    assert in_process.engine.num_open == 0


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS, ids=lambda value: json.dumps(value)[:60])
async def test_a_bad_chat_field_is_refused_by_name(in_process: Front, fields: dict[str, Any], param: str) -> None:
    reply = await call(in_process.app, "POST", CHATS, {"model": MODEL, "messages": CHAT, **fields})
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param


async def test_known_and_unknown_fields_are_refused_in_different_words(in_process: Front) -> None:
    for field, code in (("tools", "unsupported_parameter"), ("typo", "unknown_parameter")):
        reply = await call(in_process.app, "POST", CHATS, {"model": MODEL, "messages": CHAT, field: 1})
        assert reply.error["code"] == code


async def test_fields_that_ask_nothing_are_taken(in_process: Front) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "best_of": 1, "echo": False, "suffix": None, "user": "u"}
    assert (await call(in_process.app, "POST", COMPLETIONS, body)).status == 200
    chat = {"model": MODEL, "messages": CHAT, "max_tokens": 1, "store": False, "response_format": {"type": "text"}}
    assert (await call(in_process.app, "POST", CHATS, chat)).status == 200


async def test_developer_messages_and_text_parts_are_understood(in_process: Front, tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]
    messages = [{"role": "developer", "content": parts}, *CHAT]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    reply = await call(in_process.app, "POST", CHATS, body)
    wanted = tokenizer.chat([{"role": "system", "content": "Be brief"}, *CHAT])
    assert reply.json()["usage"]["prompt_tokens"] == len(wanted)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"model": "m", "prompt": NaN}',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "\\udfff": 1}',
        b'{"model": "m", "prompt": "a", "temperature": 1e999}',
        b'{"model": "m", "prompt": "a", "temperature": Infinity}',
        b'{"model": "m", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "m", "prompt": ' + b"[" * 190 + b"]" * 190 + b"}",
    ],
)
async def test_a_body_that_is_no_sane_json_is_refused(in_process: Front, raw: bytes) -> None:
    reply = await call(in_process.app, "POST", COMPLETIONS, raw)
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "invalid_request_error"


async def test_a_deeply_nested_schema_is_refused(in_process: Front) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(150):
        schema = {"type": "array", "items": schema}
    wanted = {"type": "json_schema", "json_schema": {"name": "deep", "schema": schema}}
    body = {"model": MODEL, "prompt": "a", "response_format": wanted}
    reply = await call(in_process.app, "POST", COMPLETIONS, body)
    assert reply.status == 400
    assert reply.error["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", COMPLETIONS, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_unknown_paths_and_methods_have_openais_shape(
    in_process: Front, method: str, path: str, status: int, code: str
) -> None:
    reply = await call(in_process.app, method, path, {} if method == "POST" else None)
    assert (reply.status, reply.error["code"]) == (status, code)


async def test_a_body_that_is_not_json_by_its_type_is_a_415(in_process: Front) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = await call(in_process.app, "POST", COMPLETIONS, b"{}", headers={"content-type": media_type})
        assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


async def test_a_large_body_is_a_413_announced_or_not(tokenizer: Tokenizer) -> None:
    with front(tokenizer, max_body_bytes=1000) as made:
        body = json.dumps({"model": MODEL, "prompt": "a" * 1000}).encode()
        for length in (str(len(body)), "5", "nonsense"):
            reply = await call(made.app, "POST", COMPLETIONS, body, headers={"content-length": length})
            assert (reply.status, reply.error["code"]) == (413, "body_too_large")
        fits = {"model": MODEL, "prompt": "a" * 400, "max_tokens": 1}
        assert (await call(made.app, "POST", COMPLETIONS, fits)).status == 200


def test_an_endless_chunked_body_is_cut_off_with_413(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, max_body_bytes=10_000) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", COMPLETIONS)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for _ in range(3):
            connection.send(b"1388\r\n" + b"x" * 5000 + b"\r\n")
        reply = connection.getresponse()
        assert reply.status == 413
        assert json.loads(reply.read())["error"]["code"] == "body_too_large"


async def test_a_full_queue_is_a_429_with_retry_after_and_nothing_is_lost(tokenizer: Tokenizer) -> None:
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    with front(tokenizer, step_s=0.002, max_queue_len=4, engine=settings) as made:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 20}
        replies = await asyncio.gather(*(call(made.app, "POST", COMPLETIONS, body) for _ in range(50)))
        assert {reply.status for reply in replies} == {200, 429}
        refused = [reply for reply in replies if reply.status == 429]
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert {reply.error["code"] for reply in refused} == {"queue_full"}
        assert sum(reply.status == 200 for reply in replies) >= 8
        assert made.engine.num_open == 0


async def test_when_not_all_prompts_of_a_request_fit_none_runs(tokenizer: Tokenizer) -> None:
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    with front(tokenizer, step_s=0.01, max_queue_len=0, engine=settings) as made:
        one = {"model": MODEL, "prompt": "a", "max_tokens": 100}
        first = asyncio.create_task(call(made.app, "POST", COMPLETIONS, one))
        while made.engine.stats().num_running < 1:
            await asyncio.sleep(0.005)
        reply = await call(made.app, "POST", COMPLETIONS, {**one, "prompt": ["a", "b", "c", "d"]})
        assert reply.status == 429
        assert (await first).status == 200
        assert made.engine.num_open == 0


async def test_before_there_is_a_service_the_process_is_alive_but_nothing_else_works(tokenizer: Tokenizer) -> None:
    def none_yet() -> Any:
        raise EngineUnavailableError("the engine is starting: retry later")

    app = create_app(none_yet)
    assert (await call(app, "GET", "/healthz")).status == 200
    for method, path in (("GET", "/readyz"), ("GET", "/stats"), ("GET", "/v1/models"), ("POST", COMPLETIONS)):
        reply = await call(app, method, path, {} if method == "POST" else None)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.error["code"] == "engine_unavailable"


async def test_readyz_names_the_ranks_and_turns_503_while_they_are_rebuilt(tokenizer: Tokenizer) -> None:
    with front(tokenizer) as made:
        ready = (await call(made.app, "GET", "/readyz")).json()
        assert ready["model"] == MODEL
        assert [rank["rank"] for rank in ready["ranks"]] == [0]
        assert {"pid", "node", "num_parameters", "attention_backend", "linear_backend"} <= ready["ranks"][0].keys()
        made.executor.fail(starts=2)
        await call(made.app, "POST", COMPLETIONS, {"model": MODEL, "prompt": "a"})
        reply = await call(made.app, "GET", "/readyz")
        assert reply.status == 503
        assert "recovering" in reply.error["message"]
        assert (await call(made.app, "GET", "/healthz")).status == 200
        wait_for(lambda: made.engine.status == "ready")
        assert (await call(made.app, "GET", "/readyz")).status == 200


async def test_stats_are_the_engines(in_process: Front) -> None:
    before = (await call(in_process.app, "GET", "/stats")).json()
    await call(in_process.app, "POST", COMPLETIONS, {"model": MODEL, "prompt": "a", "max_tokens": 7})
    after = (await call(in_process.app, "GET", "/stats")).json()
    assert after["num_generated_tokens"] - before["num_generated_tokens"] == 7
    assert after["num_used_blocks"] == 0


async def test_text_goes_to_tokens_and_back(in_process: Front, tokenizer: Tokenizer) -> None:
    text = "Grüße 👩‍👧 <|im_end|>"
    tokens = (await call(in_process.app, "POST", "/tokenize", {"prompt": text})).json()
    assert tokens == {"tokens": tokenizer.encode(text), "count": len(tokens["tokens"]), "max_model_len": 512}
    back = await call(in_process.app, "POST", "/detokenize", {"tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}
    chat = (await call(in_process.app, "POST", "/tokenize", {"messages": CHAT})).json()
    assert chat["tokens"] == tokenizer.chat(CHAT)
    for bad in ({}, {"prompt": "a", "messages": CHAT}, {"tokens": [-1]}):
        path = "/detokenize" if "tokens" in bad else "/tokenize"
        assert (await call(in_process.app, "POST", path, bad)).status == 400


async def test_the_legacy_route_answers_with_generated_text(in_process: Front) -> None:
    reply = await call(in_process.app, "POST", "/llm_backend", {"prompt": "Once", "max_tokens": 5})
    completion = {"model": MODEL, "prompt": "Once", "max_tokens": 5}
    same = await call(in_process.app, "POST", COMPLETIONS, completion)
    assert reply.json() == {"generated_text": same.json()["choices"][0]["text"]}
    assert (await call(in_process.app, "POST", "/llm_backend", {"inputs": "Once"})).status == 400


async def test_the_schema_tells_every_status_that_a_route_may_answer(in_process: Front) -> None:
    schema = (await call(in_process.app, "GET", "/openapi.json")).json()
    chat = schema["paths"]["/v1/chat/completions"]["post"]
    assert chat["responses"].keys() == {"200", "400", "401", "404", "408", "413", "415", "429", "503"}
    assert chat["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert schema["components"]["schemas"]["ChatBody"]["additionalProperties"] is False
    assert "HTTPValidationError" not in schema["components"]["schemas"]
