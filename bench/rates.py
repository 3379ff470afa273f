"""Measure on an idle service what `llm-ray simulate --rates` needs about its engine, and print it as YAML.

python -m bench.rates --url http://127.0.0.1:8000 [--batch 8] > rates.yaml     (one engine: batches spread over more)
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass
from statistics import median

from bench.replay import Target, add_target, ask, connect, random_prompt


@dataclass(frozen=True)
class Measured:
    """Seconds: a step with one sequence, one with the whole batch, and times to first token of two lengths."""

    alone_s: float
    together_s: float
    batch: int
    short_ttft_s: float
    long_ttft_s: float
    long_tokens: int


class MeasureError(Exception):
    """A request failed, so that nothing can be said."""


def rates_of(measured: Measured) -> dict[str, float]:
    """The straight line through the two step times; the prompt's rate without what a short one needs too."""
    per_sequence = max(0.0, (measured.together_s - measured.alone_s) / max(1, measured.batch - 1))
    fixed = max(0.0, measured.alone_s - per_sequence)
    overhead = max(0.0, measured.short_ttft_s - fixed)  # a short prompt is one step
    return {
        "decode_step_s": fixed,
        "decode_seq_s": per_sequence,
        "prefill_tokens_per_s": measured.long_tokens / max(1e-9, measured.long_ttft_s - overhead),
        "overhead_s": overhead,
    }


async def measure(target: Target, batch: int, prompt: int, tokens: int, rounds: int) -> Measured:
    rng = random.Random(0)

    async def times(length: int, output: int) -> tuple[float, float]:
        status, first, latency, _ = await ask(target, random_prompt(rng, length), output)
        if status != "ok":
            raise MeasureError(f"a request of {length} prompt and {output} output tokens ended with {status}")
        return first, (latency - first) / max(1, output - 1)

    async def ttft(length: int) -> float:
        return median([(await times(length, 1))[0] for _ in range(rounds)])

    async def step(count: int) -> float:
        answers = [await asyncio.gather(*(times(1, tokens) for _ in range(count))) for _ in range(rounds)]
        return median(step_s for answer in answers for _, step_s in answer)

    await times(prompt, tokens)  # warm up
    measured = Measured(await step(1), await step(batch), batch, await ttft(1), await ttft(prompt), prompt)
    if measured.long_ttft_s <= measured.short_ttft_s:
        raise MeasureError(
            f"a prompt of {prompt} tokens had its first token after {measured.long_ttft_s:.3f} s, one of 1 token after "
            f"{measured.short_ttft_s:.3f} s: the service is busy with something else; stop that, or raise --rounds"
        )
    return measured


async def _main(args: argparse.Namespace) -> None:
    target = await connect(args.url, args.model, args.timeout, args.key)
    async with target.client:
        measured = await measure(target, args.batch, args.prompt_tokens, args.output_tokens, args.rounds)
    print("rates:")
    for name, value in rates_of(measured).items():
        print(f"  {name}: {value:.6g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_target(parser)
    parser.add_argument("--batch", type=int, default=8, help="sequences at once, at most the engine's max_num_seqs")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="of the long prompt (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64, help="of a sequence (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    try:
        asyncio.run(_main(parser.parse_args()))
    except MeasureError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
