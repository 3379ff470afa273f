"""The shapes of /v1/completions; a chunk and a whole answer are the same object there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_ray.api.choice import ChoiceDelta, Finish, TokenInfo
from llm_ray.api.generation import Usage
from llm_ray.api.protocol_completions import Completion, CompletionChoice, CompletionLogprobs
from llm_ray.api.respond import usage_body
from llm_ray.tokenizer import Tokenizer


class CompletionFormatter:
    """created: Unix time, seconds. num_top: alternatives beside each token, or None for no log probabilities."""

    def __init__(
        self, answer_id: str, created: int, model: str, tokenizer: Tokenizer, *, num_top: int | None, wants_usage: bool
    ) -> None:
        self._id = answer_id
        self._created = created
        self._model = model
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._wants_usage = wants_usage

    def chunks(self, delta: ChoiceDelta) -> Iterable[Completion]:
        """Text, then the finish_reason in a chunk of its own."""
        if delta.text or delta.tokens:
            yield self._chunk([self._choice(delta.index, delta.text, delta.tokens, None)])
        if delta.finish_reason is not None:
            choice = CompletionChoice(index=delta.index, text="", logprobs=None, finish_reason=delta.finish_reason)
            yield self._chunk([choice])

    def usage_chunk(self, usage: Usage) -> Completion | None:
        if not self._wants_usage:
            return None
        chunk = self._chunk([])
        chunk.usage = usage_body(usage)
        return chunk

    def whole(self, deltas: list[ChoiceDelta], usage: Usage) -> Completion:
        by_index: dict[int, list[ChoiceDelta]] = {}
        for delta in deltas:
            by_index.setdefault(delta.index, []).append(delta)
        choices = [
            self._choice(
                index,
                "".join(delta.text for delta in ours),
                [token for delta in ours for token in delta.tokens],
                ours[-1].finish_reason,
            )
            for index, ours in sorted(by_index.items())
        ]
        answer = self._chunk(choices)
        answer.usage = usage_body(usage)
        return answer

    def _chunk(self, choices: list[CompletionChoice]) -> Completion:
        chunk = Completion(
            id=self._id, object="text_completion", created=self._created, model=self._model, choices=choices
        )
        if self._wants_usage:
            chunk.usage = None  # set, hence sent as null: only the last chunk counts
        return chunk

    def _choice(self, index: int, text: str, tokens: Sequence[TokenInfo], finish: Finish | None) -> CompletionChoice:
        return CompletionChoice(index=index, text=text, logprobs=self._logprobs(tokens), finish_reason=finish)

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        text = self._tokenizer.token_text
        return CompletionLogprobs(
            tokens=[text(token.token_id) for token in tokens],
            token_logprobs=[token.logprob for token in tokens],
            # OpenAI lists the sampled token too, wherever it ranks
            top_logprobs=[
                {text(each.token_id): each.logprob for each in token.top} | {text(token.token_id): token.logprob}
                for token in tokens
            ]
            if self._num_top
            else None,
            text_offset=[token.text_offset for token in tokens],
        )
