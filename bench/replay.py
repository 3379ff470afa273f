"""Replay a request trace as a load on a running service, open loop: each request leaves when the trace says so.

python -m bench.replay --trace T.csv --url http://127.0.0.1:8000 [--records R.jsonl]     prints a summary as JSON
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openai

from llm_ray.errors import ConfigError
from llm_ray.simulate.report import quantiles
from llm_ray.simulate.trace import Trace, read_trace

TOKEN_IDS = (100, 1000)  # in every vocabulary; random ones, so that no prefix cache helps
LATE_S = 0.1


@dataclass(frozen=True)
class Record:
    """One request. Seconds: of sending since the start, the others since sending; NaN for what did not come."""

    index: int
    arrival_s: float
    sent_s: float
    status: str
    ttft_s: float
    latency_s: float
    tokens: int


@dataclass(frozen=True)
class Target:
    """Whom to ask, and how long to wait."""

    client: openai.AsyncOpenAI
    model: str
    timeout_s: float


async def ask(target: Target, prompt: list[int], tokens: int) -> tuple[str, float, float, int]:
    """Status (ok, an HTTP code or an error's name), time to first token, latency, tokens that came."""
    start, first, count = time.monotonic(), float("nan"), 0
    try:
        async with asyncio.timeout(target.timeout_s):
            stream = await target.client.completions.create(
                model=target.model,
                prompt=prompt,
                max_tokens=max(1, tokens),
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            async for chunk in stream:
                if chunk.choices and not count:
                    first = time.monotonic() - start
                    count = 1
                if chunk.usage:
                    count = chunk.usage.completion_tokens
    except openai.APIStatusError as error:
        return str(error.status_code), first, float("nan"), count
    except (openai.APIError, TimeoutError, OSError) as error:
        return type(error).__name__, first, float("nan"), count
    latency = time.monotonic() - start
    short = count < max(1, tokens)
    return ("short" if short else "ok"), first, latency, count


async def replay(target: Target, trace: Trace, *, seed: int = 0) -> list[Record]:
    """Records by the order of the trace."""
    rng = random.Random(seed)
    start = time.monotonic()

    async def one(index: int, prompt: list[int]) -> Record:
        sent = time.monotonic() - start
        answer = await ask(target, prompt, trace.output[index])
        return Record(index, trace.arrival[index], sent, *answer)

    tasks = []
    for index, arrival in enumerate(trace.arrival):
        prompt = random_prompt(rng, trace.prompt[index])
        await asyncio.sleep(max(0.0, start + arrival - time.monotonic()))
        tasks.append(asyncio.create_task(one(index, prompt)))
    return await asyncio.gather(*tasks)


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(*TOKEN_IDS) for _ in range(max(1, length))]


def summarize(records: list[Record]) -> dict[str, Any]:
    good = [record for record in records if record.status == "ok"]
    return {
        "requests": len(records),
        "statuses": dict(Counter(record.status for record in records)),
        "ttft_s": quantiles([record.ttft_s for record in good]),
        "latency_s": quantiles([record.latency_s for record in good]),
        "tokens": sum(record.tokens for record in records),
        "sent_late": sum(record.sent_s - record.arrival_s > LATE_S for record in records),
    }


async def connect(url: str, model: str, timeout_s: float, key: str = "none") -> Target:
    """The model's name is asked for when none is given."""
    client = openai.AsyncOpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=key, max_retries=0, timeout=timeout_s)
    if not model:
        model = (await client.models.list()).data[0].id
    return Target(client, model, timeout_s)


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="of the service, without /v1")
    parser.add_argument("--model", default="", help="default: the first that the service names")
    parser.add_argument("--key", default="none", help="API key")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="of one request (default: %(default)s)"
    )


async def _main(args: argparse.Namespace) -> int:
    trace = read_trace(args.trace)
    target = await connect(args.url, args.model, args.timeout, args.key)
    async with target.client:
        records = await replay(target, trace, seed=args.seed)
    if args.records:
        args.records.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    print(json.dumps(summarize(records), indent=2))
    return int(any(record.status != "ok" for record in records))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, type=Path)
    add_target(parser)
    parser.add_argument("--records", type=Path, help="write a JSON line for each request")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts' token ids")
    try:
        return asyncio.run(_main(parser.parse_args()))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
