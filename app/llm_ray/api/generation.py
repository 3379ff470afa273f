"""Requests in, text out: tokenise, check, submit, merge the choices, keep the deadline. Knows no transport.

An `Answer` owns its sequences: whoever holds it must close it, and then every one of them is aborted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llm_ray import grammar
from llm_ray.api.choice import Choice, ChoiceDelta
from llm_ray.api.errors import RequestTimeoutError
from llm_ray.api.limits import check_num_choices
from llm_ray.api.request import AnswerFormat, Conversation, GenerateRequest, ModelLimits, Prompt, sampling_params
from llm_ray.api.service import Service
from llm_ray.engine.outputs import Output
from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.stream import SequenceStream
from llm_ray.errors import EngineUnavailableError, InvalidRequestError
from llm_ray.tokenizer import Tokenizer

T = TypeVar("T")
# Longer texts are tokenised beside the event loop; below, the hand-over costs more than the work.
_INLINE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. A prompt counts once, however many choices it has; the stop token counts too."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int


class Answer:
    """The answer to one request. `start`, then `next` until it gives None; `close` at any time, any number of times.

    charge is told the tokens as they are used. Raises from `start`: InvalidRequestError, QueueFullError,
    EngineUnavailableError, RequestTimeoutError; from `next`: the last two.
    """

    def __init__(self, service: Service, request: GenerateRequest, charge: Callable[[int], None]) -> None:
        self._service = service
        self._request = request
        self._charge = charge
        self._deadline = asyncio.get_running_loop().time() + service.server_config.request_timeout_s
        self._num_prompt_tokens = 0
        self._streams: list[SequenceStream] = []
        self._choices: list[Choice] = []
        self._running: set[int] = set()
        self._reads: dict[asyncio.Task[list[Output]], int] = {}
        self._ready: deque[ChoiceDelta] = deque()

    @property
    def usage(self) -> Usage:
        """Of what is done so far; num_cached_tokens is known with the first token."""
        return Usage(
            self._num_prompt_tokens,
            sum(choice.num_tokens for choice in self._choices),
            sum(stream.num_cached_tokens for stream in self._streams[:: self._request.n]),
        )

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Check everything, then submit the sequences. When it raises, closing takes back those that got in."""
        request, limits = self._request, model_limits(self._service)
        check_num_choices(request, self._service)
        prompts = [await self._bounded(encode(prompt, request, self._service)) for prompt in request.prompts]
        compiled = await self._bounded(compile_grammar(request.answer_format)) if request.answer_format else None
        params = [sampling_params(request, len(prompt), limits, compiled) for prompt in prompts]
        for prompt, choices in zip(prompts, params, strict=True):
            self._submit(prompt, choices)

    async def next(self) -> ChoiceDelta | None:
        """The next piece of any choice, or None when all have finished."""
        while not self._ready and self._running:
            for index, outputs in await self._read():
                self._take(index, outputs)
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Abort what still runs. Sequences that have finished do not mind."""
        for task in self._reads:
            task.cancel()
        self._reads.clear()
        for index in self._running:
            self._streams[index].abort()
        self._running.clear()

    def _submit(self, prompt: list[int], params: list[SamplingParams]) -> None:
        streams = self._service.engine.submit(prompt, params)
        self._num_prompt_tokens += len(prompt)
        self._charge(len(prompt))
        wants_logprobs = self._request.logprobs is not None
        for stream, one in zip(streams, params, strict=True):
            index = len(self._streams)
            self._streams.append(stream)
            self._choices.append(
                Choice(index, self._service.tokenizer, self._request.stop, one.stop_token_ids, wants_logprobs)
            )
            self._running.add(index)

    async def _read(self) -> list[tuple[int, list[Output]]]:
        """Wait until at least one sequence has something. One sequence, the usual case, needs no task."""
        if len(self._streams) == 1:
            return [(0, await self._bounded(self._streams[0].next_batch()))]
        for index in self._running - set(self._reads.values()):
            self._reads[asyncio.create_task(self._streams[index].next_batch())] = index
        done, _ = await asyncio.wait(self._reads, timeout=self.remaining_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise self._timeout()
        return [(self._reads.pop(task), task.result()) for task in done]

    def _take(self, index: int, outputs: list[Output]) -> None:
        choice = self._choices[index]
        before = choice.num_tokens
        delta = choice.feed(outputs)
        self._charge(choice.num_tokens - before)
        if delta is not None:
            self._ready.append(delta)
        if choice.finish_reason is not None:
            self._streams[index].abort()  # at a stop string the engine does not know that it is over
            self._running.discard(index)

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await work
        except TimeoutError as error:
            raise self._timeout() from error

    def _timeout(self) -> RequestTimeoutError:
        limit = self._service.server_config.request_timeout_s
        return RequestTimeoutError(f"the request took longer than request_timeout_s ({limit:g}): lower max_tokens")


def model_limits(service: Service) -> ModelLimits:
    """Raises EngineUnavailableError before the ranks have said what they hold."""
    if service.engine.status == "starting":
        raise EngineUnavailableError("the engine is starting: retry later")
    info = service.engine.info
    return ModelLimits(info.max_model_len, info.vocab_size, service.tokenizer.eos_token_ids)


async def encode(prompt: Prompt, request: GenerateRequest, service: Service) -> list[int]:
    """A prompt's token ids, each of them one that the model has. Raises InvalidRequestError."""
    if isinstance(prompt, list):
        vocab_size = model_limits(service).vocab_size
        if any(not 0 <= token_id < vocab_size for token_id in prompt):
            raise InvalidRequestError(
                f"token ids must be at least 0 and below {vocab_size}", param=request.prompt_param
            )
        return prompt
    token_ids = await encode_text(prompt, service.tokenizer)
    if not token_ids:
        raise InvalidRequestError("the prompt is empty: send at least one token", param=request.prompt_param)
    return token_ids


async def encode_text(
    prompt: str | Conversation, tokenizer: Tokenizer, *, add_special_tokens: bool = True
) -> list[int]:
    def work() -> list[int]:
        if isinstance(prompt, Conversation):
            return tokenizer.chat(prompt.messages)
        return tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

    return work() if _num_chars(prompt) <= _INLINE_CHARS else await asyncio.to_thread(work)


async def compile_grammar(wanted: AnswerFormat) -> str:
    """A checked, serialized grammar. Beside the event loop: a client's schema may take long to compile."""

    def work() -> str:
        if wanted.kind == "regex":
            compiled = grammar.compile_regex(wanted.pattern, param=wanted.param)
        elif wanted.kind == "json_schema":
            compiled = grammar.compile_json_schema(wanted.schema or {}, param=wanted.param)
        else:
            compiled = grammar.compile_json_object()
        grammar.validate(compiled, param=wanted.param)
        return compiled

    return await asyncio.to_thread(work)


def _num_chars(prompt: str | Conversation) -> int:
    parts: Sequence[str] = (prompt,) if isinstance(prompt, str) else [m["content"] for m in prompt.messages]
    return sum(map(len, parts))
