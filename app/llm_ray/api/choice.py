"""One sequence's tokens as text: detokenised, cut at stop strings, with the tokens' log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_ray.engine.outputs import FinishOutput, Output, TokenOutput
from llm_ray.engine.sequence import FinishReason
from llm_ray.engine.step import TokenLogprob
from llm_ray.errors import EngineUnavailableError
from llm_ray.tokenizer import StopChecker, Tokenizer

Finish = Literal["stop", "length"]
# JSON has no infinity: this is what OpenAI reports for a token that cannot be
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """text_offset: characters of the answer before this token."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What is new of one choice. finish_reason is set once, on its last delta."""

    index: int
    text: str
    tokens: tuple[TokenInfo, ...]
    finish_reason: Finish | None


class Choice:
    """Turns one sequence's outputs into deltas. is_finished may come before the engine's own end: at a stop string."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        stop_token_ids: frozenset[int],
        wants_logprobs: bool,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.finish_reason: Finish | None = None
        self._detokenizer = tokenizer.detokenizer()
        self._stop = StopChecker(stop)
        self._stop_token_ids = stop_token_ids
        self._wants_logprobs = wants_logprobs
        self._num_chars = 0
        self._infos: list[TokenInfo] = []

    def feed(self, outputs: Sequence[Output]) -> ChoiceDelta | None:
        """All that can be shown after these outputs; None when nothing can yet.

        Raises EngineUnavailableError when the engine gave the sequence up.
        """
        text = ""
        for output in outputs:
            if self.finish_reason is not None:
                break
            text += self._token(output) if isinstance(output, TokenOutput) else self._finish(output)
        if not text and self.finish_reason is None:
            return None
        infos, self._infos = tuple(self._infos), []
        return ChoiceDelta(self.index, text, infos, self.finish_reason)

    def _token(self, output: TokenOutput) -> str:
        self.num_tokens += 1
        if output.token_id in self._stop_token_ids:
            return ""
        if self._wants_logprobs:
            self._infos.append(self._info(output))
        return self._show(self._detokenizer.push(output.token_id))

    def _info(self, output: TokenOutput) -> TokenInfo:
        top = tuple(TokenLogprob(each.token_id, max(LOWEST_LOGPROB, each.logprob)) for each in output.top)
        logprob = 0.0 if output.logprob is None else output.logprob
        return TokenInfo(output.token_id, max(LOWEST_LOGPROB, logprob), top, self._num_chars)

    def _finish(self, output: FinishOutput) -> str:
        if output.reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise EngineUnavailableError(output.error or "the server is shutting down and has aborted this request")
        text = self._show(self._detokenizer.finish())
        if self.finish_reason is None:
            text += self._stop.finish()
            self.finish_reason = "length" if output.reason is FinishReason.LENGTH else "stop"
        return text

    def _show(self, text: str) -> str:
        self._num_chars += len(text)
        shown = self._stop.push(text)
        if self._stop.stopped:
            self.finish_reason = "stop"
        return shown
