"""The shapes of /v1/chat/completions: one answer, or OpenAI's exact sequence of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_ray.api.choice import ChoiceDelta, TokenInfo
from llm_ray.api.generation import Usage
from llm_ray.api.protocol_chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    TokenLogprobBody,
    TopLogprob,
)
from llm_ray.api.respond import usage_body
from llm_ray.tokenizer import Tokenizer


class ChatFormatter:
    """created: Unix time, seconds."""

    def __init__(
        self, answer_id: str, created: int, model: str, tokenizer: Tokenizer, *, wants_logprobs: bool, wants_usage: bool
    ) -> None:
        self._id = answer_id
        self._created = created
        self._model = model
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._wants_usage = wants_usage
        self._begun: set[int] = set()

    def chunks(self, delta: ChoiceDelta) -> Iterable[ChatChunk]:
        """The role before a choice's first text; the finish_reason in a chunk of its own after its last."""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            yield self._chunk(delta.index, Delta(role="assistant", content="", refusal=None))
        if delta.text or delta.tokens:
            yield self._chunk(delta.index, Delta(content=delta.text), self._logprobs(delta.tokens))
        if delta.finish_reason is not None:
            choice = ChunkChoice(index=delta.index, delta=Delta(), logprobs=None, finish_reason=delta.finish_reason)
            yield self._envelope(choice)

    def usage_chunk(self, usage: Usage) -> ChatChunk | None:
        if not self._wants_usage:
            return None
        return ChatChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=[],
            usage=usage_body(usage),
        )

    def whole(self, deltas: list[ChoiceDelta], usage: Usage) -> ChatCompletion:
        by_index: dict[int, list[ChoiceDelta]] = {}
        for delta in deltas:
            by_index.setdefault(delta.index, []).append(delta)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, ours) for index, ours in sorted(by_index.items())],
            usage=usage_body(usage),
        )

    def _choice(self, index: int, deltas: list[ChoiceDelta]) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage(content="".join(delta.text for delta in deltas)),
            logprobs=self._logprobs([token for delta in deltas for token in delta.tokens]),
            finish_reason=deltas[-1].finish_reason or "stop",
        )

    def _chunk(self, index: int, delta: Delta, logprobs: ChatLogprobs | None = None) -> ChatChunk:
        return self._envelope(ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=None))

    def _envelope(self, choice: ChunkChoice) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=[choice],
        )
        if self._wants_usage:
            chunk.usage = None  # set, hence sent as null: only the last chunk counts
        return chunk

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> ChatLogprobs | None:
        if not self._wants_logprobs:
            return None
        return ChatLogprobs(content=[self._token(token) for token in tokens], refusal=None)

    def _token(self, token: TokenInfo) -> TokenLogprobBody:
        top = [self._top(each.token_id, each.logprob) for each in token.top]
        own = self._top(token.token_id, token.logprob)
        return TokenLogprobBody(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)

    def _top(self, token_id: int, logprob: float) -> TopLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return TopLogprob(token=raw.decode("utf-8", "replace"), logprob=logprob, bytes=list(raw))
