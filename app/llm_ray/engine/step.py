"""The seam between the scheduling side and the model side: one step's input, its output, and who carries it.

The engine makes a `StepPlan`, an `Executor` carries it to every rank, the last stage's first rank answers with a
`StepResult`. All of it is plain data, so that any transport will do.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

from llm_ray.engine.sequence import SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """What the sampler must know of a sequence before it samples for it; sent once, and again after a preemption.

    token_ids is the prompt and all tokens sampled so far; the first num_prompt_tokens of them are the prompt.
    """

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams


@dataclass(slots=True)
class StepPlan:
    """One forward pass over T tokens of S sequences, row after row.

    Sequence i owns tokens query_start_loc[i]:query_start_loc[i+1]; they are its last ones of seq_lens[i] in all.
    Its KV blocks are block_tables[i]; token t is written to slot slot_mapping[t] (block * block_size + offset).
    Every layer writes all T keys before any row reads, so a sequence may read blocks that another one fills in the
    same step. sample[i] is 1 when the sequence's last token is its newest, that is, when its next token is wanted.
    """

    step_id: int
    seq_ids: list[int]
    token_ids: array[int]
    positions: array[int]
    slot_mapping: array[int]
    query_start_loc: array[int]
    seq_lens: array[int]
    block_tables: list[list[int]]
    sample: list[bool]
    new: list[NewSequence] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """logprob and top are set only when the sequence asked for logprobs; top is sorted, best first."""

    seq_id: int
    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class StepResult:
    """One token for each sequence with `sample` set, in the plan's order. execute_s: seconds in the model."""

    step_id: int
    tokens: list[SampledToken]
    execute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank's place and what it holds."""

    rank: int
    pp_rank: int
    tp_rank: int
    pid: int
    node: str
    num_parameters: int
    weight_bytes: int
    attention_backend: str
    linear_backend: str


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """The handshake's result: every rank has loaded its weights, sized its cache and run one step."""

    ranks: tuple[RankInfo, ...]
    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    start_s: float


class Executor(Protocol):
    """Runs steps on all ranks. Not thread safe: one thread drives it. Any ExecutorError means the group is dead;
    `shutdown` then `start` builds a new one, with an empty KV cache and no sampler state."""

    max_in_flight: int
    """Steps that may be submitted before the first is collected: the number of pipeline stages."""

    def start(self) -> ExecutorInfo:
        """Block until every rank is ready. Raises ExecutorError, or ConfigError when it can never work."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Send a step to every rank."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest submitted step. Raises ExecutorError on a rank's death, exception or missed deadline."""
        ...

    def check(self) -> None:
        """Prove that idle ranks answer. Only with no step in flight. Raises ExecutorError."""
        ...

    def shutdown(self) -> None:
        """Stop every rank, by force if need be. May be called at any time, any number of times."""
        ...
