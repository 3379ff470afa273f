"""The front over a fake executor: in process (`call`), or behind uvicorn on a free loopback port (`serving`)."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message

from llm_ray.api.app import create_app
from llm_ray.api.service import Service, build_service
from llm_ray.config import EngineConfig, ServerConfig
from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.executor.fake import FakeExecutor
from llm_ray.tokenizer import Tokenizer

MODEL = "fake-model"


@dataclass
class Front:
    service: Service
    executor: FakeExecutor
    app: ASGIApp
    url: str = ""

    @property
    def engine(self) -> AsyncEngine:
        return self.service.engine


@contextmanager
def front(
    tokenizer: Tokenizer, *, step_s: float = 0.0, engine: dict[str, Any] | None = None, **server: Any
) -> Iterator[Front]:
    """A started engine and its app. engine: settings of EngineConfig; the rest are those of ServerConfig."""
    engine_config = EngineConfig(**{"model": MODEL, "max_model_len": 512, "num_blocks": 512, **(engine or {})})
    server_config = ServerConfig(**{"model_name": MODEL, **server})
    executor = FakeExecutor(engine_config, vocab_size=tokenizer.vocab_size, step_s=step_s)
    async_engine = AsyncEngine(engine_config, executor, max_queue_len=server_config.max_queue_len)
    async_engine.start()
    service = build_service(async_engine, tokenizer, engine_config, server_config)
    try:
        yield Front(service, executor, create_app(lambda: service))
    finally:
        executor.release()
        async_engine.shutdown(0.0)


@contextmanager
def serving(tokenizer: Tokenizer, **settings: Any) -> Iterator[Front]:
    """`front`, behind a real HTTP server in a thread of its own."""
    with front(tokenizer, **settings) as made, listening(made.app) as url:
        made.url = url
        yield made


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        server.force_exit = True
        thread.join(20)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.005)


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    timeout_s: float = 20.0,
) -> Reply:
    """One request through ASGI. body: bytes as they are, anything else as JSON. A hang is a TimeoutError."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    all_headers = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in all_headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
    }
    pending: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]
    reply = Reply()

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await asyncio.get_running_loop().create_future()  # the client stays
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    async with asyncio.timeout(timeout_s):
        await app(scope, receive, send)
    return reply
