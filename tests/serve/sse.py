"""A raw server-sent-events client: what a test needs to count how streams end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.serve.running_app import MODEL_NAME


@dataclass
class Outcome:
    """How one request ended. status 0: the connection broke, which no server of ours may do."""

    status: int = 0
    retry_after: str | None = None
    events: list[Any] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """With [DONE], or with a refusal before the first event."""
        return self.status in (429, 503) or (self.status == 200 and bool(self.events) and self.events[-1] == "[DONE]")

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if isinstance(event, dict) and "error" in event), None)


async def stream(http: httpx2.AsyncClient, prompt: str, max_tokens: int, leave_after: int | None = None) -> Outcome:
    """One streamed completion of exactly max_tokens. leave_after: disconnect after so many events."""
    outcome = Outcome()
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            outcome.retry_after = response.headers.get("retry-after")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    outcome.events.append(data if data == "[DONE]" else json.loads(data))
                if leave_after is not None and len(outcome.events) >= leave_after:
                    break
            outcome.status = response.status_code
    except httpx2.TransportError as error:
        outcome.events.append(repr(error))
    return outcome


def opened(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.AsyncClient(base_url=url, limits=limits, timeout=240)
