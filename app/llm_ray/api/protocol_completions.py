"""Bodies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from llm_ray.api.protocol import SamplingBody, UsageBody

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenPrompt = Annotated[list[TokenId], Field(min_length=1)]


class CompletionBody(SamplingBody):
    """One prompt or many, as text or as token ids. best_of, echo and suffix are taken only where they ask nothing."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | TokenPrompt
        | Annotated[list[TokenPrompt], Field(min_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry per prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(BaseModel):
    """An answer, and each chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
