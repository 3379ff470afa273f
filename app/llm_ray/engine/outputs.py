"""What leaves the engine: one sequence's tokens, its end, and the engine's own numbers. Knows no text."""

from __future__ import annotations

from dataclasses import dataclass

from llm_ray.engine.sequence import FinishReason
from llm_ray.engine.step import TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One sampled token. A stop token is reported too, right before its FinishOutput; the reader leaves it out."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishOutput:
    """The end of a sequence; each has exactly one. error says what went wrong when the reason is ERROR."""

    reason: FinishReason
    error: str | None = None


Output = TokenOutput | FinishOutput


@dataclass(slots=True)
class Counters:
    """Totals since the process started; they outlive a rebuilt scheduler. Token counts unless named otherwise."""

    num_queried_tokens: int = 0
    """looked up in the prefix cache, one prompt per admission"""
    num_cached_tokens: int = 0
    """found there"""
    num_evicted_blocks: int = 0
    num_prompt_tokens: int = 0
    """prompt tokens computed, recomputed ones included, cached ones not"""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. num_used_blocks are held by a sequence; num_free_blocks may still hold a reusable prefix."""

    num_waiting: int
    num_running: int
    num_blocks: int
    num_used_blocks: int
    num_free_blocks: int
    num_queried_tokens: int
    num_cached_tokens: int
    num_evicted_blocks: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_steps: int
    num_rank_restarts: int = 0
    status: str = "stopped"
