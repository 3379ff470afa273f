"""One completion in progress: its tokens, its KV blocks, its sampling settings. Knows no text and no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Checked at the API's edge; plain data from there on.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0, the penalties' 0 (repetition_penalty 1) are off.
    logprobs: None for none, else how many alternatives to report beside the sampled token.
    grammar: a serialized llguidance grammar that the answer must match, or None.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    grammar: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's state for one completion. The scheduler owns every field below `params`."""

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    prefix_id: int = 0
    """What the prefix cache calls the content of all full blocks so far; 0 before the first."""
    in_flight: bool = False
    """Part of a submitted step that is not collected yet: its blocks must not change hands."""
    is_known_to_sampler: bool = False
    """The ranks have its NewSequence."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
