"""A real prefill and a real decode step before a rank calls itself ready: a wrong attention kernel is found here."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from llm_ray.engine.step import StepPlan
from llm_ray.errors import ExecutorError
from llm_ray.worker.model_runner import ModelRunner

# Largest difference between the two ways to the same logits, as a share of their spread.
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.25, torch.float16: 0.1}


def run(runner: ModelRunner) -> None:
    """Decode a token behind a prefilled prompt, then prefill all of it: both must give the same logits.

    Leaves nothing behind but keys in blocks 0 and 1, which no sequence reads before it has written them.
    """
    length = max(2, min(runner.config.block_size + 1, runner.max_model_len, runner.config.max_num_batched_tokens))
    tokens = [(7 * i + 1) % runner.vocab_size for i in range(length)]
    runner.step(_plan(runner, tokens, 0, length - 1))
    _, decoded = runner.step(_plan(runner, tokens, length - 1, length))
    _, prefilled = runner.step(_plan(runner, tokens, 0, length))
    if len(decoded):  # only the stage's first rank has logits
        _compare(decoded[0], prefilled[0], runner)


def _compare(decoded: Tensor, prefilled: Tensor, runner: ModelRunner) -> None:
    if not bool(torch.isfinite(decoded).all() and torch.isfinite(prefilled).all()):
        raise ExecutorError(
            "warm-up gave logits that are not finite: the checkpoint is damaged, or dtype is too narrow"
        )
    error = float((decoded - prefilled).abs().max() / prefilled.std().clamp_min(1e-6))
    limit = TOLERANCE[runner.dtype]
    if error > limit:
        raise ExecutorError(
            f"warm-up: decode and prefill differ by {error:.3g} of the logits' spread, more than {limit}; "
            f"attention_backend {runner.attention_backend} is wrong for this model on this machine"
        )


def _plan(runner: ModelRunner, tokens: list[int], start: int, end: int) -> StepPlan:
    """Tokens start:end of one sequence in blocks 0 and 1."""
    return StepPlan(
        step_id=0,
        seq_ids=[0],
        token_ids=array("q", tokens[start:end]),
        positions=array("q", range(start, end)),
        slot_mapping=array("q", range(start, end)),
        query_start_loc=array("q", [0, end - start]),
        seq_lens=array("q", [end]),
        block_tables=[[0, 1]],
        sample=[True],
    )
