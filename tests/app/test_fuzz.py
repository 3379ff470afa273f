"""Ten thousand hostile bodies: every one gets a documented status and a well-formed body in time, never a 500."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from llm_ray.tokenizer import Tokenizer
from tests.app.front import MODEL, Front, Reply, call, front

NUM_MUTATED = 12_000
NUM_GENERATED = 400  # by schemathesis, for each of the five routes with a body
SEED = 20260

VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": MODEL, "prompt": "Once", "max_tokens": 3, "temperature": 0.5, "logprobs": 2, "n": 2}),
    ("/v1/completions", {"model": MODEL, "prompt": [1, 2, 3], "stop": ["a", "b"], "stream": True, "seed": 3}),
    ("/v1/completions", {"model": MODEL, "prompt": ["x", "y"], "logit_bias": {"5": 1.5}, "best_of": 1, "echo": False}),
    ("/v1/completions", {"model": MODEL, "prompt": [[1], [2]], "guided_regex": "[ab]+", "min_p": 0.1, "top_k": 5}),
    (
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "hi"}],
            "max_completion_tokens": 4,
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            },
            "presence_penalty": 1.0,
            "frequency_penalty": -1.0,
            "top_p": 0.9,
            "user": "me",
        },
    ),
    ("/tokenize", {"model": MODEL, "prompt": "Once", "add_special_tokens": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/llm_backend", {"prompt": "Once", "max_tokens": 3, "temperature": 1.0, "stop": "x"}),
]

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 5e-324, float("nan"),
    float("inf"), "", "a", "\ud800", "\x00", "\ufffd", "👩‍👧", "<|im_end|>", "A" * 3000, [], [[]], [None], {}, {"": ""},
    {"type": "text"}, {"type": "json_object"}, {"$ref": "#"}, [0] * 600, ["a"] * 40, "(" * 50, "(a*)*" * 20, "[",
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"pattern": "(?<=x)y", "type": "string"}}},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": []}}},
]  # fmt: skip
ODD_KEYS = [
    "",
    "model",
    "n",
    "tools",
    "\ud800",
    "__class__",
    "prompt",
    "0",
    "schema",
    "type",
    "x" * 300,
    "messages",
    "name",
]


@pytest.fixture(scope="module")
def small(tokenizer: Tokenizer) -> Iterator[Front]:
    """A short model, so that a body without a limit is answered soon."""
    with front(tokenizer, engine={"max_model_len": 48}, max_body_bytes=16_000, max_choices=4) as made:
        yield made


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in children for found in paths_of(child, (*path, key)))]


def odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD))


def mutated(rng: random.Random, body: Any) -> Any:
    """One place replaced by something odd, removed, doubled, wrapped, or given an odd key."""
    place = rng.choice(paths_of(body))
    if not place:
        return odd(rng) if rng.random() < 0.1 else {**body, rng.choice(ODD_KEYS): odd(rng)}
    parent = body
    for key in place[:-1]:
        parent = parent[key]
    kind, key = rng.randrange(6), place[-1]
    if kind == 0:
        del parent[key]
    elif kind == 1:
        parent[key] = [parent[key]]
    elif kind == 2:
        parent[key] = {rng.choice(ODD_KEYS): parent[key]}
    elif kind == 3 and isinstance(parent, list):
        parent.extend(parent[:] * rng.randrange(1, 4))
    else:
        parent[key] = odd(rng)
    return body


def scrambled(rng: random.Random, raw: bytes) -> bytes:
    """The same body with a few bytes cut, swapped or repeated."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        choice = rng.randrange(4)
        if choice == 0:
            data = data[:at]
        elif choice == 1:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 4)))
        elif choice == 2:
            data[at:at] = data[:at][-8:] * rng.randrange(1, 50)
        else:
            data[at : at + rng.randrange(1, 6)] = rng.choice(
                [b"[", b'"', b"\\u", b"1e9999", b"{", b"-", b"\\", b"null"]
            )
    return bytes(data)


def hostile_body(rng: random.Random) -> tuple[str, bytes]:
    path, body = rng.choice(VALID)
    body = json.loads(json.dumps(body))
    for _ in range(rng.randrange(1, 4)):
        body = mutated(rng, body) if isinstance(body, dict) else body
    raw = json.dumps(body).encode()
    return path, scrambled(rng, raw) if rng.random() < 0.25 else raw


def check(path: str, reply: Reply, documented: dict[str, set[str]], what: object) -> None:
    assert str(reply.status) in documented[path], (path, what, reply)
    if reply.status != 200:
        assert reply.error["message"], (path, what)
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.body.endswith(b"data: [DONE]\n\n"), (path, what, reply)
        assert b'"error"' not in reply.body, (path, what, reply)
    else:
        reply.json()


async def documented_statuses(small: Front) -> dict[str, set[str]]:
    schema = (await call(small.app, "GET", "/openapi.json")).json()
    return {path: set(routes["post"]["responses"]) for path, routes in schema["paths"].items() if "post" in routes}


async def test_mutated_bodies_never_give_an_internal_error_nor_hang(small: Front) -> None:
    documented = await documented_statuses(small)
    rng = random.Random(SEED)
    seen: Counter[int] = Counter()
    for start in range(0, NUM_MUTATED, 32):
        bodies = [hostile_body(rng) for _ in range(min(32, NUM_MUTATED - start))]
        replies = await asyncio.gather(*(call(small.app, "POST", path, raw, timeout_s=60) for path, raw in bodies))
        for (path, raw), reply in zip(bodies, replies, strict=True):
            check(path, reply, documented, raw)
            seen[reply.status] += 1
    assert seen.total() == NUM_MUTATED
    # it must have tried both sides of the border
    assert seen[200] > NUM_MUTATED // 20, seen
    assert seen[400] > NUM_MUTATED // 4, seen
    assert small.engine.num_open == 0
    assert small.engine.stats().num_used_blocks == 0


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/llm_backend"]
)
def test_bodies_generated_from_the_apps_own_schema_give_documented_answers(small: Front, path: str) -> None:
    async def describe() -> tuple[dict[str, Any], dict[str, set[str]]]:
        return (await call(small.app, "GET", "/openapi.json")).json(), await documented_statuses(small)

    raw_schema, documented = asyncio.run(describe())
    operation = schemathesis.openapi.from_dict(raw_schema)[path]["POST"]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    count = 0
    with asyncio.Runner() as runner:

        @settings(
            max_examples=NUM_GENERATED,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=modes[0]) | operation.as_strategy(generation_mode=modes[1]))
        def answered(case: Any) -> None:
            nonlocal count
            count += 1
            body = {**case.body, "model": MODEL} if isinstance(case.body, dict) and count % 2 else case.body
            raw = json.dumps(body, default=str).encode()
            reply = runner.run(call(small.app, "POST", path, raw, timeout_s=60))
            check(path, reply, documented, raw)

        answered()
    assert count >= NUM_GENERATED
    assert small.engine.num_open == 0
