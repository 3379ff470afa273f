"""Decides how many tokens of which sequence go into the next step. Knows neither text nor stop rules.

One pass over the running sequences, first come first served, then one over the waiting ones. Prefill, chunked prefill,
decode, prefix hits and recompute are one case: a sequence has tokens that are not computed yet.
"""

from __future__ import annotations

import itertools
from collections import deque

from llm_ray.config import EngineConfig
from llm_ray.engine.block_manager import BlockManager
from llm_ray.engine.plan import Row, build_plan
from llm_ray.engine.sequence import Sequence, SequenceStatus
from llm_ray.engine.step import StepPlan


class Scheduler:
    """Owns every living sequence. `running` is in order of arrival, and all of it arrived before all of `waiting`.

    num_groups: steps that may be in flight at once. The sequences are then spread over as many steps, as one in
    flight cannot be in the next step too: its newest token is not known.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager, *, num_groups: int = 1) -> None:
        self.config = config
        self.blocks = blocks
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._num_groups = num_groups
        self._sequences: dict[int, Sequence] = {}
        self._step_ids = itertools.count()
        self._forgotten: list[int] = []
        # One step's draft, filled by `schedule`.
        self._rows: list[Row] = []
        self._row_limit = 0
        self._prefill_budget = 0

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """The caller has made sure that the sequence alone fits the cache at its longest."""
        if sequence.seq_id in self._sequences:
            raise ValueError(f"sequence {sequence.seq_id} was added before")
        self._sequences[sequence.seq_id] = sequence
        self.waiting.append(sequence)

    def get(self, seq_id: int) -> Sequence | None:
        return self._sequences.get(seq_id)

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing can run before a step in flight is collected.

        The caller must submit the plan: its blocks count as computed from now on.
        """
        ready = [sequence for sequence in self.running if not sequence.in_flight]
        num_decodes = sum(map(is_decode, ready))
        self._rows = []
        self._row_limit = -(-min(self.num_sequences, self.config.max_num_seqs) // self._num_groups)
        # A decode row costs one token and is never held up by a prefill, whoever came first.
        self._prefill_budget = self.config.max_num_batched_tokens - num_decodes
        num_preemptions = self.blocks.counters.num_preemptions
        if self._schedule_running(ready) and self.blocks.counters.num_preemptions == num_preemptions:
            self._admit()
        if not self._rows:
            return None
        finished, self._forgotten = self._forgotten, []
        return build_plan(next(self._step_ids), self._rows, self.blocks.block_size, finished)

    def land(self, plan: StepPlan) -> list[Sequence]:
        """The plan's step has been collected: its sequences, in the plan's order. Those aborted meanwhile are
        FINISHED and have given up their blocks."""
        landed = [self._sequences[seq_id] for seq_id in plan.seq_ids]
        for sequence in landed:
            sequence.in_flight = False
            if sequence.status is SequenceStatus.FINISHED:
                self.finish(sequence)
        return landed

    def finish(self, sequence: Sequence) -> None:
        """Free the sequence's blocks at once, or when its step lands: until then the ranks still write them."""
        was_waiting = sequence.status is SequenceStatus.WAITING
        sequence.status = SequenceStatus.FINISHED
        if sequence.in_flight:
            return
        if was_waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._release(sequence)
        del self._sequences[sequence.seq_id]

    def check(self) -> None:
        """Raise ValueError unless blocks, queues and sequences agree."""
        self.blocks.check(sequence.block_table for sequence in self._sequences.values())
        if {s.seq_id for s in (*self.running, *self.waiting)} != set(self._sequences):
            raise ValueError("scheduler: a sequence is in no queue or in two")
        if len(self.running) > self.config.max_num_seqs:
            raise ValueError("scheduler: more than max_num_seqs sequences run")
        order = [s.seq_id for s in (*self.running, *self.waiting)]
        if order != sorted(order):
            raise ValueError(f"scheduler: out of order of arrival: {order}")
        for sequence in self._sequences.values():
            if len(sequence.block_table) != self.blocks.num_blocks_for(sequence.num_computed_tokens):
                raise ValueError(f"scheduler: sequence {sequence.seq_id} holds more or fewer blocks than it computed")

    def _schedule_running(self, ready: list[Sequence]) -> bool:
        """False when one found no room; then nobody younger may go on either, or it could wait for ever."""
        index = 0
        while index < len(ready) and len(self._rows) < self._row_limit:
            sequence = ready[index]
            index += 1
            num_tokens = 1
            if not is_decode(sequence):
                if self._prefill_budget <= 0:
                    continue
                self._take_over(sequence)
                num_tokens = self._chunk(sequence)
                self._prefill_budget -= num_tokens
            if not self._make_room(sequence, sequence.num_computed_tokens + num_tokens, ready):
                return False
            self._put(sequence, num_tokens)
        return True

    def _make_room(self, sequence: Sequence, num_tokens: int, ready: list[Sequence]) -> bool:
        """Blocks for num_tokens tokens in all, at the cost of the youngest, which may be the sequence itself.

        Victims are popped off the end of `ready`: whoever is in a row already stands before `sequence`, out of reach.
        When the youngest of all is in flight, False: better wait for it than preempt one that came earlier.
        """
        while not self.blocks.allocate(sequence, num_tokens):
            victim = ready[-1]
            if self._has_younger_in_flight(victim):
                return False
            self._preempt(ready.pop())
            if victim is sequence:
                return False
        return True

    def _has_younger_in_flight(self, sequence: Sequence) -> bool:
        younger = reversed(self.running)
        return any(other.in_flight for other in itertools.takewhile(lambda other: other is not sequence, younger))

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue; all is recomputed, save what the prefix cache still holds by then."""
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.blocks.counters.num_preemptions += 1
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        if sequence.is_known_to_sampler:
            sequence.is_known_to_sampler = False
            self._forgotten.append(sequence.seq_id)

    def _admit(self) -> None:
        """Nobody is preempted for a newcomer, and it starts only when its whole prompt would fit now: otherwise
        prompts would be computed just to be thrown away."""
        while (
            self.waiting
            and self._prefill_budget > 0
            and len(self.running) < self.config.max_num_seqs
            and len(self._rows) < self._row_limit
        ):
            sequence = self.waiting[0]
            cached = self.blocks.match(sequence)
            missing = self.blocks.num_blocks_for(sequence.num_tokens) - len(cached)
            if missing > self.blocks.num_free_blocks - self.blocks.num_idle(cached):
                return
            self.running.append(self.waiting.popleft())
            sequence.status = SequenceStatus.RUNNING
            self.blocks.counters.num_queried_tokens += sequence.num_tokens
            self._share(sequence, cached)
            num_tokens = self._chunk(sequence)
            self._prefill_budget -= num_tokens
            self.blocks.allocate(sequence, sequence.num_computed_tokens + num_tokens)
            self._put(sequence, num_tokens)

    def _take_over(self, sequence: Sequence) -> None:
        """Skip blocks that another sequence has published since: equal prefixes are computed once, by turns."""
        if sequence.num_computed_tokens % self.blocks.block_size == 0:
            self._share(sequence, self.blocks.match(sequence))

    def _share(self, sequence: Sequence, blocks: list[int]) -> None:
        self.blocks.share(sequence, blocks)
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens += len(blocks) * self.blocks.block_size

    def _chunk(self, sequence: Sequence) -> int:
        """Tokens of a prefill's next chunk. All but the last end on a block border, where blocks can be taken over."""
        missing = sequence.num_tokens - sequence.num_computed_tokens
        num_tokens = min(missing, self.config.long_prefill_token_threshold, self._prefill_budget)
        if num_tokens < missing:
            aligned = num_tokens - (sequence.num_computed_tokens + num_tokens) % self.blocks.block_size
            return aligned if aligned > 0 else num_tokens
        return num_tokens

    def _put(self, sequence: Sequence, num_tokens: int) -> None:
        """Into this step. Its full blocks are published now: every layer writes all of the step's keys before any
        row reads, so the rows after this one may use them already."""
        start = sequence.num_computed_tokens
        end = start + num_tokens
        self.blocks.publish(sequence, end)
        self._rows.append(Row(sequence, start, end))
        sequence.num_computed_tokens = end
        sequence.in_flight = True
        if start < sequence.num_prompt_tokens:
            self.blocks.counters.num_prompt_tokens += min(end, sequence.num_prompt_tokens) - start


def is_decode(sequence: Sequence) -> bool:
    """Only the newest token is left to compute."""
    return len(sequence.token_ids) - sequence.num_computed_tokens == 1
