"""transformers' continuous batching (paged SDPA). Arguments: MODEL DTYPE."""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from bench.peers.loop import Answer, serve_jobs


def main() -> None:
    model_dir, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    manager = model.eval().init_continuous_batching(
        generation_config=GenerationConfig(max_new_tokens=128, do_sample=False, eos_token_id=-1, pad_token_id=2),
        continuous_batching_config=ContinuousBatchingConfig(block_size=32, num_blocks=1024, max_batch_tokens=1024),
    )
    manager.start()

    def run(prompts: list[list[int]], new: int, job: dict[str, Any]) -> Answer:
        ids = manager.add_requests(prompts, max_new_tokens=new)
        done: dict[str, list[int]] = {}
        while len(done) < len(ids):
            result = manager.get_result(timeout=0.5)
            if result is not None and result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
        return Answer([done[i] for i in ids])

    serve_jobs(run, f"transformers {transformers.__version__} continuous batching")
    manager.stop(block=True)


if __name__ == "__main__":
    main()
