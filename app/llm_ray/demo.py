"""The whole stack on one machine: two ranks, a small model, one streamed answer over HTTP. `llm-ray demo`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig
from llm_ray.launch import Endpoints, running, wait_for_interrupt
from llm_ray.model_store import DEMO_DTYPES, DEMO_NAME, demo_model

QUESTION = "What is the capital of France? Answer in one sentence."
MAX_TOKENS = 64
TENSOR_PARALLEL_SIZE = 2
KV_CACHE_BYTES = 1 << 29  # one sequence of the model's full length and some more
ANSWER_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Timing:
    """Seconds from sending the request to the first token, and to the end; tokens as the server counts them."""

    first_token_s: float
    total_s: float
    num_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Of the tokens after the first, so that the prompt's own cost is left out."""
        seconds = self.total_s - self.first_token_s
        return (self.num_tokens - 1) / seconds if self.num_tokens > 1 and seconds > 0 else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="exit after the answer instead of staying up")
    parser.add_argument("--dtype", choices=DEMO_DTYPES, default=DEMO_DTYPES[0], help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    """Answer on stdout, everything else on stderr."""
    stdout = sys.stdout
    model = demo_model(args.dtype, log=_say)
    began = time.monotonic()
    _say(f"starting Ray and {TENSOR_PARALLEL_SIZE} ranks for {DEMO_NAME} ({args.dtype}); about half a minute")
    engine = EngineConfig(
        model=str(model),
        dtype=args.dtype,
        tensor_parallel_size=TENSOR_PARALLEL_SIZE,
        kv_cache_bytes=KV_CACHE_BYTES,
    )
    with running(engine, ServerConfig(), DeploymentConfig(), show_logs=False) as endpoints:
        _say(f"ready in {time.monotonic() - began:.1f} s at {endpoints.url}\n\n> {QUESTION}")
        timing = answer(endpoints, stdout)
        _report(endpoints, timing)
        if not args.once:
            _say(_next_steps(endpoints))
            wait_for_interrupt()


def answer(endpoints: Endpoints, stdout: TextIO) -> Timing:
    """Ask the demo's question and print the streamed answer piece by piece."""
    sent = time.monotonic()
    first_token_s, num_tokens = 0.0, 0
    for event in _stream(endpoints):
        for choice in event["choices"]:
            piece = choice["delta"].get("content")
            if piece and not first_token_s:
                first_token_s = time.monotonic() - sent
            print(piece or "", end="", file=stdout, flush=True)
        num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    print(file=stdout, flush=True)
    return Timing(first_token_s, time.monotonic() - sent, num_tokens)


def _stream(endpoints: Endpoints) -> Iterator[dict[str, Any]]:
    body = {
        "model": DEMO_NAME,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{endpoints.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
        for line in response:
            data = line.decode().removeprefix("data:").strip()
            if data and data != "[DONE]":
                yield _event(data)


def _event(data: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise RuntimeError(f"the server answered with an error: {event['error']['message']}")
    return event


def _report(endpoints: Endpoints, timing: Timing) -> None:
    _say(
        f"\ntime to first token {timing.first_token_s * 1000:.0f} ms, then {timing.tokens_per_s:.1f} tokens/s "
        f"({timing.num_tokens} tokens)"
    )
    with urllib.request.urlopen(f"{endpoints.url}/readyz", timeout=ANSWER_TIMEOUT_S) as response:
        ranks = json.load(response)["ranks"]
    for rank in ranks:
        _say(
            f"rank {rank['rank']} (pid {rank['pid']}) holds {rank['num_parameters'] / 1e6:.1f} M parameters, "
            f"{rank['weight_bytes'] / 1e6:.0f} MB, attention {rank['attention_backend']}"
        )
    _say("the layers are cut between the ranks, the embedding is in each")


def _next_steps(endpoints: Endpoints) -> str:
    url = endpoints.url
    chat = '{"model": "%s", "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 32}'
    completion = '{"model": "%s", "prompt": "The sea is", "max_tokens": 16, "stream": true}'
    return f"""
Still up. Try:
  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{chat % DEMO_NAME}'
  curl -N {url}/v1/completions -H 'Content-Type: application/json' -d '{completion % DEMO_NAME}'
  curl {url}/llm_backend -H 'Content-Type: application/json' -d '{{"prompt": "The sea is"}}'
  curl {url}/readyz
  grpcurl -plaintext -d '{{"prompt": "The sea is", "max_tokens": 32}}' {endpoints.grpc} llmray.v1.Inference/Generate
Ctrl-C stops it."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
