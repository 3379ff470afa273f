"""Our own engine, in process, one rank. Arguments: MODEL DTYPE [KEY=VALUE of EngineConfig ...].

Job options: one_at_a_time (each prompt alone), prefix_caching=False (a second engine without the cache), interfere
(time to the first token of prompts[1] alone, and while prompts[0] is being prefilled, through the asyncio front).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from typing import Any

import llm_ray
from bench.peers.loop import Answer, serve_jobs
from llm_ray.config import EngineConfig, parse
from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.engine.engine import Engine
from llm_ray.engine.outputs import TokenOutput
from llm_ray.engine.sequence import SamplingParams, Sequence
from llm_ray.executor.local import LocalExecutor

INTERFERENCE_PAIRS = 9


class OwnEngine:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._engines: dict[bool, Engine] = {}
        self._ids = itertools.count()
        self._rng = random.Random(0)

    def config(self, *, prefix_caching: bool) -> EngineConfig:
        return parse(EngineConfig, {**self.settings, "prefix_caching": prefix_caching})

    def run(self, prompts: list[list[int]], new: int, job: dict[str, Any]) -> Answer:
        if job.get("interfere"):
            alone, busy = asyncio.run(self.interfere(*prompts))
            return Answer([], extra={"alone_ttft": alone, "busy_ttft": busy})
        batches = [[p] for p in prompts] if job.get("one_at_a_time") else [prompts]
        caching = job.get("prefix_caching", True)
        return Answer([tokens for batch in batches for tokens in self.generate(batch, new, prefix_caching=caching)])

    def generate(self, prompts: list[list[int]], new: int, *, prefix_caching: bool) -> list[list[int]]:
        if prefix_caching not in self._engines:
            config = self.config(prefix_caching=prefix_caching)
            self._engines[prefix_caching] = Engine(config, LocalExecutor(config))
            self._engines[prefix_caching].start()
        engine = self._engines[prefix_caching]
        outputs: dict[int, list[int]] = {}
        for prompt in prompts:
            seq_id = next(self._ids)
            outputs[seq_id] = []
            engine.add(Sequence(seq_id, list(prompt), len(prompt), SamplingParams(max_tokens=new, temperature=0.0)))
        while engine.has_work:
            for seq_id, output in engine.step():
                if isinstance(output, TokenOutput):
                    outputs[seq_id].append(output.token_id)
        return list(outputs.values())

    async def interfere(self, long: list[int], short: list[int]) -> tuple[float, float]:
        """Median seconds to the short prompt's first token: (alone, while the long prompt is being prefilled)."""
        config = self.config(prefix_caching=False)
        engine = AsyncEngine(config, LocalExecutor(config), max_queue_len=8)
        engine.start()

        async def first_token(prompt: list[int]) -> float:
            began = time.perf_counter()
            (stream,) = engine.submit(prompt, [SamplingParams(max_tokens=1, temperature=0.0)])
            async for _ in stream:
                return time.perf_counter() - began
            raise RuntimeError("the stream ended without a token")

        try:
            long_s = await first_token(long)
            alone, busy = [], []
            for _ in range(INTERFERENCE_PAIRS):
                alone.append(await first_token(short))
                prefill = asyncio.create_task(first_token(long))
                await asyncio.sleep(self._rng.uniform(0.1, 0.5) * long_s)
                busy.append(await first_token(short))
                if prefill.done():
                    busy.pop()  # the prefill was over before the short prompt was served
                await prefill
        finally:
            await asyncio.to_thread(engine.shutdown, 0.0)
        return sorted(alone)[len(alone) // 2], sorted(busy)[len(busy) // 2]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    model, dtype, *pairs = sys.argv[1:]
    settings: dict[str, Any] = {"model": model, "dtype": dtype, "max_model_len": 2048}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    serve_jobs(OwnEngine(settings).run, f"llm-ray {llm_ray.__version__}")


if __name__ == "__main__":
    main()
