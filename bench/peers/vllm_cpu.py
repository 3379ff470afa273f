"""vLLM's offline engine on the CPU, graph mode, prefix cache on, in its own environment. Arguments: MODEL DTYPE."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.peers.loop import Answer, serve_jobs


def main() -> None:
    model_dir, dtype = sys.argv[1:]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm

    llm = vllm.LLM(
        model=model_dir,
        dtype=dtype,
        max_model_len=2048,
        max_num_seqs=64,
        enable_prefix_caching=True,
        seed=0,
        distributed_executor_backend="uni",
    )

    def run(prompts: list[list[int]], new: int, job: dict[str, Any]) -> Answer:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        out = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return Answer([list(o.outputs[0].token_ids) for o in out])

    serve_jobs(run, f"vllm {vllm.__version__} (CPU)")


if __name__ == "__main__":
    main()
