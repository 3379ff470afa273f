"""Draws the next token of every sequence of a step from its logits. Knows no scheduling and no text.

A draw is a function of the row's logits, the sequence's settings and seed, and its output position: neither the other
sequences of the step nor a preemption or a restart changes it.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from llguidance import LLTokenizer

from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import NewSequence, SampledToken, TokenLogprob
from llm_ray.errors import ConfigError
from llm_ray.worker import draw
from llm_ray.worker.grammar import GrammarMatcher, load_tokenizer
from llm_ray.worker.penalties import TokenCounts, add_bias, apply_penalties

logger = logging.getLogger(__name__)

_LEAST = torch.finfo(torch.float32).tiny


@dataclass(slots=True, eq=False)
class _State:
    """What one sequence carries from step to step. counts and matcher exist only where they are used."""

    seq_id: int
    params: SamplingParams
    key: bytes
    num_output_tokens: int
    counts: TokenCounts | None
    matcher: Future[GrammarMatcher] | None
    is_failure_logged: bool = False


@dataclass(frozen=True, slots=True)
class _Draws:
    """Rows drawn the same way, and their settings as tensors [n]. Those of `truncated` use top-k, top-p or min-p."""

    rows: list[int]
    states: list[_State]
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @staticmethod
    def of(rows: list[int], states: list[_State], vocab_size: int, device: torch.device) -> _Draws:
        chosen = [states[row] for row in rows]
        params = [state.params for state in chosen]

        def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return _Draws(
            rows=rows,
            states=chosen,
            # below float32's smallest it would be 0, and 0 / 0 no number
            temperature=column([max(one.temperature, _LEAST) for one in params], torch.float32),
            top_k=column([min(one.top_k or vocab_size, vocab_size) for one in params], torch.int64),
            top_p=column([one.top_p for one in params], torch.float64),
            min_p=column([one.min_p for one in params], torch.float64),
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """What depends only on which sequences are sampled together; kept as long as they stay the same."""

    seq_ids: list[int]
    states: list[_State]
    full: _Draws
    truncated: _Draws
    penalised: list[int]
    biased: list[int]
    constrained: list[int]
    reporting: list[int]
    is_plain_greedy: bool


class Sampler:
    """Owned by the rank that has the logits; driven by one thread."""

    def __init__(self, vocab_size: int, tokenizer_path: str | None, seed: int) -> None:
        """vocab_size: the logits' width. tokenizer_path: the checkpoint's directory, needed for grammars only.

        seed: for sequences that bring none. The tokenizer loads, and grammars compile, in a thread of their own.
        """
        self._vocab_size = vocab_size
        self._seed = seed
        self._states: dict[int, _State] = {}
        self._batch: _Batch | None = None
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer]
        if tokenizer_path is not None:
            self._tokenizer = self._compiler.submit(load_tokenizer, tokenizer_path, vocab_size)
        else:
            self._tokenizer = Future()
            self._tokenizer.set_exception(ConfigError("no tokenizer on this rank: grammars need tokenizer_path"))

    def add(self, sequence: NewSequence) -> None:
        """Start a sequence, or start it again after a preemption with the tokens sampled so far."""
        params, output = sequence.params, sequence.token_ids[sequence.num_prompt_tokens :]
        key = draw.derive_key(params.seed) if params.seed is not None else draw.derive_key(self._seed, sequence.seq_id)
        self._states[sequence.seq_id] = _State(
            seq_id=sequence.seq_id,
            params=params,
            key=key,
            num_output_tokens=len(output),
            counts=TokenCounts.of(params, sequence.token_ids, sequence.num_prompt_tokens),
            matcher=self._compiler.submit(self._compile, params, output) if params.grammar is not None else None,
        )
        self._batch = None

    def remove(self, seq_id: int) -> None:
        """Forget a sequence; one that is not known is no error."""
        if self._states.pop(seq_id, None) is not None:
            self._batch = None

    def sample(self, logits: torch.Tensor, seq_ids: list[int]) -> list[SampledToken]:
        """One token for each row. logits: float32 [N, vocab_size], overwritten. Every sequence must have been added.

        Logprobs are log-softmax of the model's own logits, before penalties, bias, grammar and temperature.
        """
        if not seq_ids:
            return []
        batch = self._batch_for(seq_ids, logits.device)
        if batch.is_plain_greedy:
            tokens = draw.argmax(logits).tolist()
            self._advance(batch, tokens)
            return [SampledToken(seq_id, token) for seq_id, token in zip(seq_ids, tokens, strict=True)]
        raw = logits[batch.reporting] if batch.reporting else None
        self._adjust(logits, batch)
        tokens = self._choose(logits, batch)
        results = [SampledToken(seq_id, token) for seq_id, token in zip(seq_ids, tokens, strict=True)]
        if raw is not None:
            for row, result in zip(batch.reporting, self._report(raw, batch, tokens), strict=True):
                results[row] = result
        self._advance(batch, tokens)
        return results

    def _batch_for(self, seq_ids: list[int], device: torch.device) -> _Batch:
        if self._batch is not None and self._batch.seq_ids == seq_ids:
            return self._batch
        states = [self._states[seq_id] for seq_id in seq_ids]
        full: list[int] = []
        truncated: list[int] = []
        for row, state in enumerate(states):
            params = state.params
            if params.temperature > 0:
                is_truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
                (truncated if is_truncated else full).append(row)

        def rows(used: list[bool]) -> list[int]:
            return [row for row, is_used in enumerate(used) if is_used]

        penalised = rows([state.counts is not None for state in states])
        biased = rows([bool(state.params.logit_bias) for state in states])
        constrained = rows([state.matcher is not None for state in states])
        reporting = rows([state.params.logprobs is not None for state in states])
        self._batch = _Batch(
            seq_ids=list(seq_ids),
            states=states,
            full=_Draws.of(full, states, self._vocab_size, device),
            truncated=_Draws.of(truncated, states, self._vocab_size, device),
            penalised=penalised,
            biased=biased,
            constrained=constrained,
            reporting=reporting,
            is_plain_greedy=not (full or truncated or penalised or biased or constrained or reporting),
        )
        return self._batch

    def _adjust(self, logits: torch.Tensor, batch: _Batch) -> None:
        """Penalties, then bias, then grammar: nothing lifts a token that the grammar forbids."""
        states = batch.states
        if batch.penalised:
            counts = [one for row in batch.penalised if (one := states[row].counts) is not None]
            apply_penalties(logits, batch.penalised, counts, [states[row].params for row in batch.penalised])
        if batch.biased:
            add_bias(logits, batch.biased, [states[row].params.logit_bias for row in batch.biased])
        for row in batch.constrained:
            logits[row].masked_fill_(~self._allowed(states[row]).to(logits.device), float("-inf"))

    def _choose(self, logits: torch.Tensor, batch: _Batch) -> list[int]:
        num_drawn = len(batch.full.rows) + len(batch.truncated.rows)
        tokens = draw.argmax(logits) if num_drawn < len(logits) else logits.new_empty(num_drawn, dtype=torch.int64)
        for draws, is_truncated in ((batch.full, False), (batch.truncated, True)):
            if not draws.rows:
                continue
            some = logits if len(draws.rows) == len(logits) else logits[draws.rows]
            probs = draw.probabilities_(some, draws.temperature)
            numbers = [draw.uniform(state.key, state.num_output_tokens) for state in draws.states]
            uniforms = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
            if is_truncated:
                found = draw.draw_truncated(probs, uniforms, draws.top_k, draws.top_p, draws.min_p)
            else:
                found = draw.draw(probs, uniforms)
            tokens[draws.rows] = found
        chosen: list[int] = tokens.tolist()
        return chosen

    def _report(self, raw: torch.Tensor, batch: _Batch, tokens: list[int]) -> list[SampledToken]:
        """Tokens with logprobs. raw: the untouched logits of batch.reporting."""
        states = [batch.states[row] for row in batch.reporting]
        chosen = [tokens[row] for row in batch.reporting]
        norms = raw.logsumexp(-1, keepdim=True)
        own = raw.gather(1, torch.tensor(chosen, device=raw.device)[:, None]).sub_(norms)[:, 0].tolist()
        most = min(max(state.params.logprobs or 0 for state in states), self._vocab_size)
        best: list[list[TokenLogprob]] = [[] for _ in states]
        if most:
            values, index = draw.top(raw, most)
            pairs = zip(index.tolist(), values.sub_(norms).tolist(), strict=True)
            best = [[TokenLogprob(*one) for one in zip(*row, strict=True)] for row in pairs]
        return [
            SampledToken(state.seq_id, token, logprob, tuple(row[: state.params.logprobs]))
            for state, token, logprob, row in zip(states, chosen, own, best, strict=True)
        ]

    def _advance(self, batch: _Batch, tokens: list[int]) -> None:
        for state, token in zip(batch.states, tokens, strict=True):
            state.num_output_tokens += 1
            if state.counts is not None:
                state.counts.add(token)
            if state.matcher is not None and state.matcher.exception() is None:
                state.matcher.result().consume(token)

    def _compile(self, params: SamplingParams, output: list[int]) -> GrammarMatcher:
        """In the compiler's thread, which has loaded the tokenizer before."""
        tokenizer = self._tokenizer.result()
        stops = sorted(params.stop_token_ids)
        ends = [token for token in stops if token in tokenizer.eos_tokens] or stops
        return GrammarMatcher(tokenizer, params.grammar or "", self._vocab_size, ends, output)

    def _allowed(self, state: _State) -> torch.Tensor:
        """bool [vocab_size]. A grammar that failed leaves only the sequence's stop tokens, and is logged once."""
        assert state.matcher is not None
        failure = state.matcher.exception()
        if failure is None:
            matcher = state.matcher.result()
            allowed, problem = matcher.allowed(), matcher.error
        else:
            allowed, problem = torch.zeros(self._vocab_size, dtype=torch.bool), str(failure)
            allowed[sorted(state.params.stop_token_ids)] = True
        if problem and not state.is_failure_logged:
            state.is_failure_logged = True
            place = (state.seq_id, state.num_output_tokens)
            logger.error("grammar_failed seq_id=%d position=%d error=%r", *place, problem)
        return allowed if failure is None or state.params.stop_token_ids else ~allowed
