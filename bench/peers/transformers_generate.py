"""transformers `generate`: each job is one left-padded static batch. Arguments: MODEL DTYPE."""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.peers.loop import Answer, serve_jobs

PAD = 2


def main() -> None:
    model_dir, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]], new: int, job: dict[str, Any]) -> Answer:
        longest = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=PAD,
        )
        return Answer([row[longest:].tolist() for row in out])

    serve_jobs(run, f"transformers {transformers.__version__} generate")


if __name__ == "__main__":
    main()
