"""The synchronous engine: schedule, submit, collect, postprocess. One thread drives it. Knows no text and no clock."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from llm_ray.config import EngineConfig
from llm_ray.engine.block_manager import BlockManager, HashBlock, hash_block
from llm_ray.engine.outputs import Counters, EngineStats, FinishOutput, Output, TokenOutput
from llm_ray.engine.scheduler import Scheduler
from llm_ray.engine.sequence import FinishReason, SamplingParams, Sequence, SequenceStatus
from llm_ray.engine.step import Executor, ExecutorInfo, StepPlan, StepResult
from llm_ray.errors import ExecutorError, InvalidRequestError

Event = tuple[int, Output]
"""(seq_id, what happened to that sequence)"""


class Engine:
    """Every sequence that was added gets its tokens and then exactly one FinishOutput, from `step` or `abort`.

    When `step` or `check` raises, the executor and all sequences are lost: call `forget`, tell the clients,
    `shutdown`, then `start` again.
    """

    def __init__(self, config: EngineConfig, executor: Executor, *, hash_block: HashBlock = hash_block) -> None:
        self.config = config
        self.executor = executor
        self.counters = Counters()
        self._hash_block = hash_block
        self._info: ExecutorInfo | None = None
        self._blocks: BlockManager | None = None
        self._scheduler: Scheduler | None = None
        self._in_flight: deque[StepPlan] = deque()

    @property
    def info(self) -> ExecutorInfo:
        """The executor's handshake, with max_model_len lowered to what the KV cache can hold for one sequence."""
        if self._info is None:
            raise RuntimeError("the engine was never started")
        return self._info

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            raise RuntimeError("the engine was never started")
        return self._scheduler

    @property
    def has_work(self) -> bool:
        return self.scheduler.num_sequences > 0 or bool(self._in_flight)

    def start(self) -> ExecutorInfo:
        """Block until all ranks are ready, with an empty cache and no sequences. Raises what Executor.start does."""
        info = self.executor.start()
        # The newest token of a sequence has no KV yet, hence the one more.
        capacity = (info.num_blocks - 1) * info.block_size + 1
        self._info = dataclasses.replace(info, max_model_len=min(info.max_model_len, capacity))
        self.forget()
        return self._info

    def forget(self) -> None:
        """Drop all sequences and the prefix cache, without a word to anyone: the ranks have lost both."""
        if self._info is None:
            return
        self._in_flight.clear()
        self._blocks = BlockManager(
            self._info.num_blocks,
            self._info.block_size,
            self.config.prefix_caching,
            counters=self.counters,
            hash_block=self._hash_block,
        )
        self._scheduler = Scheduler(self.config, self._blocks, num_groups=self.executor.max_in_flight)

    def check_request(self, prompt_token_ids: SequenceOf[int], params: SequenceOf[SamplingParams]) -> None:
        """InvalidRequestError when this can never be served. Touches no state; any thread."""
        info = self.info
        num_tokens = len(prompt_token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("the prompt is empty: send at least one token", param="prompt")
        if num_tokens + 1 > info.max_model_len:
            raise InvalidRequestError(
                f"the prompt's {num_tokens} tokens and one of the answer exceed max_model_len ({info.max_model_len}, "
                f"with {info.num_blocks - 1} KV blocks of {info.block_size} tokens): shorten the prompt",
                param="prompt",
                code="context_length_exceeded",
            )
        _check_tokens("prompt", (min(prompt_token_ids), max(prompt_token_ids)), info.vocab_size)
        for one in params:
            if one.max_tokens < 1:
                raise InvalidRequestError(f"max_tokens ({one.max_tokens}) must be at least 1", param="max_tokens")
            _check_tokens("logit_bias", [token_id for token_id, _ in one.logit_bias], info.vocab_size)

    def add(self, sequence: Sequence) -> None:
        """Sequences are served in the order of their ids, which must grow. The caller has called check_request."""
        self.scheduler.add(sequence)

    def abort(self, seq_id: int) -> list[Event]:
        """Its FinishOutput, or nothing when it has ended already. Its blocks are free before the next step is made,
        or, if its own step is in flight, when that one is collected."""
        sequence = self.scheduler.get(seq_id)
        if sequence is None or sequence.status is SequenceStatus.FINISHED:
            return []
        self.scheduler.finish(sequence)
        return [(seq_id, FinishOutput(FinishReason.ABORT))]

    def step(self) -> list[Event]:
        """Keep the ranks busy, then wait for the oldest step. Empty when there was nothing to do."""
        while len(self._in_flight) < self.executor.max_in_flight:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            self._in_flight.append(plan)
            self.executor.submit(plan)
        if not self._in_flight:
            return []
        result = self.executor.collect()
        return self._postprocess(self._in_flight.popleft(), result)

    def check(self) -> None:
        """Raise ExecutorError unless the idle ranks answer."""
        if not self._in_flight:
            self.executor.check()

    def shutdown(self) -> None:
        self.executor.shutdown()

    def stats(self) -> EngineStats:
        """Any thread; the numbers may be one step apart from each other."""
        blocks, scheduler = self._blocks, self._scheduler
        num_blocks = blocks.num_blocks if blocks else 0
        num_free = blocks.num_free_blocks if blocks else 0
        return EngineStats(
            num_waiting=len(scheduler.waiting) if scheduler else 0,
            num_running=len(scheduler.running) if scheduler else 0,
            num_blocks=num_blocks,
            num_used_blocks=num_blocks - num_free,
            num_free_blocks=num_free,
            **dataclasses.asdict(self.counters),
        )

    def _postprocess(self, plan: StepPlan, result: StepResult) -> list[Event]:
        sampled_for = [seq_id for seq_id, sample in zip(plan.seq_ids, plan.sample, strict=True) if sample]
        if result.step_id != plan.step_id or [token.seq_id for token in result.tokens] != sampled_for:
            raise ExecutorError(
                f"step {plan.step_id} wants tokens for sequences {sampled_for}, the ranks answered step "
                f"{result.step_id} with {[token.seq_id for token in result.tokens]}"
            )
        landed = self.scheduler.land(plan)
        self.counters.num_steps += 1
        events: list[Event] = []
        tokens = iter(result.tokens)
        for sequence, sample in zip(landed, plan.sample, strict=True):
            if not sample:
                continue
            token = next(tokens)
            if sequence.status is SequenceStatus.FINISHED:
                continue
            sequence.token_ids.append(token.token_id)
            self.counters.num_generated_tokens += 1
            events.append((sequence.seq_id, TokenOutput(token.token_id, token.logprob, token.top)))
            reason = self._finish_reason(sequence, token.token_id)
            if reason is not None:
                self.scheduler.finish(sequence)
                events.append((sequence.seq_id, FinishOutput(reason)))
        return events

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if token_id in sequence.params.stop_token_ids:
            return FinishReason.STOP
        if sequence.num_output_tokens >= sequence.params.max_tokens or sequence.num_tokens >= self.info.max_model_len:
            return FinishReason.LENGTH
        return None


def _check_tokens(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has token {token_id}, which is not in the vocabulary (0 to {vocab_size - 1})", param=param
            )
