"""A Serve application that is up in a second, for tests of what surrounds one. Ray imports it in its workers."""

from __future__ import annotations

from typing import Any

from ray import serve


@serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=1, ray_actor_options={"num_cpus": 0})
class Say:
    def __init__(self, text: str) -> None:
        self.text = text

    async def __call__(self, request: Any) -> str:
        return self.text


def build(args: dict[str, Any]) -> serve.Application:
    if "error" in args:
        raise ValueError(args["error"])
    return Say.bind(args["text"])
