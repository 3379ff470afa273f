"""An executor without a model, for tests and dry runs: exact about the plan, arbitrary about the tokens.

Its "KV" of a token depends on all tokens before it, and its next token on all KV read back through the block table, so
a block that is shared, freed or overwritten wrongly gives a wrong token.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable

from llm_ray.config import EngineConfig
from llm_ray.engine.sequence import SamplingParams
from llm_ray.engine.step import (
    ExecutorInfo,
    NewSequence,
    RankInfo,
    SampledToken,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from llm_ray.errors import ExecutorError

EMPTY = -1


class FakeExecutor:
    """Implements `Executor`. ValueError on a malformed plan.

    `fail` and `hold` may be called from any thread, for tests of failure and of timing.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocab_size: int = 256,
        max_in_flight: int = 1,
        step_s: float = 0.0,
        max_model_len: int = 4096,
    ) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.max_in_flight = max_in_flight
        self.step_s = step_s
        self.num_starts = 0
        self.num_steps = 0
        self.num_checks = 0
        self.plans: list[StepPlan] = []
        """All steps submitted since the last start, when keep_plans is set."""
        self.keep_plans = False
        self._max_model_len = config.max_model_len or max_model_len
        self._num_blocks = config.num_blocks or 1024
        self._failure: str | None = "not started"
        self._failing_starts = 0
        self._open = threading.Event()
        self._open.set()
        self._submitted: deque[StepPlan] = deque()
        self._known: dict[int, SamplingParams] = {}
        self._layers: tuple[array[int], array[int]] = (array("q"), array("q"))

    def start(self) -> ExecutorInfo:
        if self._failing_starts > 0:
            self._failing_starts -= 1
            raise ExecutorError("rank 0 did not start (injected)")
        self.num_starts += 1
        self._failure = None
        self._submitted.clear()
        self._known.clear()
        self.plans.clear()
        num_slots = self._num_blocks * self.config.block_size
        self._layers = (array("q", [EMPTY]) * num_slots, array("q", [EMPTY]) * num_slots)
        rank = RankInfo(0, 0, 0, 0, "local", 0, 0, "fake", "fake")
        return ExecutorInfo(
            (rank,), self._num_blocks, self.config.block_size, self._max_model_len, self.vocab_size, 0.0
        )

    def submit(self, plan: StepPlan) -> None:
        self._raise_if_dead()
        if len(self._submitted) >= self.max_in_flight:
            raise ValueError(f"{len(self._submitted)} steps are in flight already")
        busy = {seq_id for other in self._submitted for seq_id in other.seq_ids}
        if not busy.isdisjoint(plan.seq_ids):
            raise ValueError(f"sequences {busy & set(plan.seq_ids)} are in flight already")
        check_plan(plan, self.config.block_size, self._num_blocks, self.vocab_size)
        self._submitted.append(plan)
        if self.keep_plans:
            self.plans.append(plan)

    def collect(self) -> StepResult:
        plan = self._submitted[0]
        self._raise_if_dead()
        if self.step_s:
            time.sleep(self.step_s)
        if not self._open.wait(self.config.step_timeout_s):
            self._failure = f"step {plan.step_id} took longer than step_timeout_s ({self.config.step_timeout_s})"
        self._raise_if_dead()
        self._submitted.popleft()
        self.num_steps += 1
        for seq_id in plan.finished:
            del self._known[seq_id]
        for new in plan.new:
            self._known[new.seq_id] = new.params
        self._write(plan)
        return StepResult(plan.step_id, [self._sample(plan, row) for row, wanted in enumerate(plan.sample) if wanted])

    def check(self) -> None:
        self._raise_if_dead()
        if self._submitted:
            raise ValueError("check with a step in flight")
        self.num_checks += 1

    def shutdown(self) -> None:
        self._failure = "not started"
        self._submitted.clear()

    def fail(self, *, starts: int = 0) -> None:
        """Die now; then also fail the next `starts` attempts to start."""
        self._failing_starts = starts
        self._failure = "rank 0 died (injected)"
        self._open.set()

    def hold(self) -> None:
        """Hang in `collect`: until `release`, or until the step's deadline."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _raise_if_dead(self) -> None:
        if self._failure is not None:
            raise ExecutorError(self._failure)

    def _write(self, plan: StepPlan) -> None:
        """Layer by layer, as a model does: all rows write a layer before any row reads it."""
        first, second = self._layers
        for slot, token_id in zip(plan.slot_mapping, plan.token_ids, strict=True):
            first[slot] = token_id
        for row in range(len(plan.seq_ids)):
            start, end = plan.query_start_loc[row], plan.query_start_loc[row + 1]
            state = Prefix(self._read(first, plan, row)[: plan.positions[start]])
            for t in range(start, end):
                second[plan.slot_mapping[t]] = state.extend(plan.token_ids[t])

    def _read(self, layer: array[int], plan: StepPlan, row: int) -> array[int]:
        size, context = self.config.block_size, array("q")
        for block in plan.block_tables[row]:
            context += layer[block * size : (block + 1) * size]
        return context[: plan.seq_lens[row]]

    def _sample(self, plan: StepPlan, row: int) -> SampledToken:
        seq_id = plan.seq_ids[row]
        params = self._known[seq_id]
        token_id = draw(self._read(self._layers[1], plan, row), params.seed, self.vocab_size)
        if params.logprobs is None:
            return SampledToken(seq_id, token_id)
        top = [TokenLogprob((token_id + i) % self.vocab_size, -0.5 * (i + 1)) for i in range(params.logprobs)]
        return SampledToken(seq_id, token_id, -0.5, tuple(top))


class Prefix:
    """The running state over a prefix; `extend` gives the new token's KV."""

    def __init__(self, token_ids: array[int]) -> None:
        self._hash = hashlib.blake2b(token_ids.tobytes(), digest_size=7)

    def extend(self, token_id: int) -> int:
        self._hash.update(token_id.to_bytes(8, "little"))
        return int.from_bytes(self._hash.digest(), "little")


def draw(keys: array[int], seed: int | None, vocab_size: int) -> int:
    digest = hashlib.blake2b(keys.tobytes() + repr(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


def answer(prompt: Iterable[int], num_tokens: int, *, seed: int | None = None, vocab_size: int = 256) -> list[int]:
    """What the fake model says to a prompt, worked out without blocks or batches."""
    state = Prefix(array("q"))
    keys = array("q", map(state.extend, prompt))
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens.append(draw(keys, seed, vocab_size))
        keys.append(state.extend(tokens[-1]))
    return tokens


def check_plan(plan: StepPlan, block_size: int, num_blocks: int, vocab_size: int) -> None:
    """ValueError, naming the fault, unless the plan keeps every promise that `StepPlan` makes."""
    num_rows, num_tokens = len(plan.seq_ids), len(plan.token_ids)
    bounds = list(plan.query_start_loc)
    faults = {
        "no rows": num_rows == 0,
        "a sequence twice": len(set(plan.seq_ids)) != num_rows,
        "row columns of unequal length": {len(plan.seq_lens), len(plan.block_tables), len(plan.sample)} != {num_rows},
        "token columns of unequal length": {len(plan.positions), len(plan.slot_mapping)} != {num_tokens},
        "query_start_loc does not cut the tokens into rows": len(bounds) != num_rows + 1
        or bounds[0] != 0
        or bounds[-1] != num_tokens
        or any(start >= end for start, end in itertools.pairwise(bounds)),
        "a token outside the vocabulary": any(not 0 <= token_id < vocab_size for token_id in plan.token_ids),
        "a slot written twice": len(set(plan.slot_mapping)) != num_tokens,
        "a block outside the cache, or scratch": any(
            not 0 < block < num_blocks for table in plan.block_tables for block in table
        ),
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(f"step {plan.step_id}: {fault}")
    for row in range(num_rows):
        _check_row(plan, row, block_size)
    _check_new(plan.new, plan)


def _check_row(plan: StepPlan, row: int, block_size: int) -> None:
    start, end = plan.query_start_loc[row], plan.query_start_loc[row + 1]
    table, seq_len = plan.block_tables[row], plan.seq_lens[row]
    positions = range(seq_len - (end - start), seq_len)
    where = f"step {plan.step_id}, sequence {plan.seq_ids[row]}"
    if positions.start < 0 or list(plan.positions[start:end]) != list(positions):
        raise ValueError(f"{where}: positions are not its last ones of {seq_len}")
    if len(table) * block_size < seq_len:
        raise ValueError(f"{where}: {len(table)} blocks cannot hold {seq_len} tokens")
    if len(set(table)) != len(table):
        raise ValueError(f"{where}: its table holds a block twice")
    slots = [table[p // block_size] * block_size + p % block_size for p in positions]
    if list(plan.slot_mapping[start:end]) != slots:
        raise ValueError(f"{where}: slot_mapping does not follow its block table")


def _check_new(news: list[NewSequence], plan: StepPlan) -> None:
    rows = {seq_id: row for row, seq_id in enumerate(plan.seq_ids)}
    for new in news:
        row = rows.get(new.seq_id)
        if row is None or not plan.sample[row] or len(new.token_ids) != plan.seq_lens[row]:
            raise ValueError(f"step {plan.step_id}: sequence {new.seq_id} is new but its history is not this step's")
