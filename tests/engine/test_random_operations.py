"""Thousands of random operations on a tiny cache: the books balance after each, and no answer is anybody else's."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from llm_ray.engine.block_manager import BlockManager, hash_block
from llm_ray.engine.engine import Engine
from llm_ray.engine.outputs import FinishOutput, Output
from llm_ray.engine.sequence import FinishReason, Sequence
from llm_ray.executor.fake import FakeExecutor, answer
from tests.support.engine import (
    ends_of,
    make_config,
    make_engine,
    make_sequence,
    num_scheduled,
    num_used_blocks,
    plans_of,
    run,
    seeded,
    tokens_of,
)

NUM_OPERATIONS = 20_000
VOCABULARY = 256


def weak_hash(parent: bytes, tokens: bytes) -> bytes:
    """Six digests for all texts there are: nearly every block collides."""
    return bytes([hash_block(parent, tokens)[0] % 6])


def random_prompt(rng: random.Random) -> list[int]:
    """One of three families of prefixes, cut anywhere, then a tail from a tiny alphabet: hits and near misses."""
    family = rng.randrange(3)
    prefix = [family + i // 8 for i in range(rng.choice((0, 3, 4, 8, 12, 17, 24)))]
    return prefix + [rng.randrange(2) for _ in range(rng.randrange(1, 14))]


@dataclass
class Traffic:
    """Adds, aborts and steps at random, and remembers what everyone asked for and got."""

    engine: Engine
    rng: random.Random
    outputs: dict[int, list[Output]] = field(default_factory=dict)
    asked: dict[int, tuple[list[int], int, int]] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def operate(self) -> None:
        dice = self.rng.random()
        if dice < 0.12 and self.engine.scheduler.num_sequences < 12:
            self.add()
        elif dice < 0.15 and self.asked:
            self.abort()
        else:
            self.done["step"] += 1
            self.note(self.engine.step())

    def add(self) -> None:
        seq_id, prompt, max_tokens = len(self.asked), random_prompt(self.rng), self.rng.randrange(1, 30)
        seed = self.rng.randrange(2)
        self.asked[seq_id] = (prompt, max_tokens, seed)
        self.outputs[seq_id] = []
        self.alive.add(seq_id)
        self.engine.add(make_sequence(seq_id, prompt, max_tokens=max_tokens, seed=seed))
        self.done["add"] += 1

    def abort(self) -> None:
        """Mostly of one still at work; else of one that may have ended already."""
        alive = self.alive and self.rng.random() < 0.7
        seq_id = self.rng.choice(sorted(self.alive)) if alive else self.rng.randrange(len(self.asked))
        events = self.engine.abort(seq_id)
        self.note(events)
        self.done["abort" if events else "late abort"] += 1

    def note(self, events: list[tuple[int, Output]]) -> None:
        for seq_id, output in events:
            self.outputs[seq_id].append(output)
            if isinstance(output, FinishOutput):
                self.alive.remove(seq_id)

    def check_answers(self) -> None:
        limit = self.engine.info.max_model_len
        for seq_id, (prompt, max_tokens, seed) in self.asked.items():
            outputs = self.outputs[seq_id]
            (end,) = ends_of(outputs)
            assert outputs[-1] is end, f"sequence {seq_id} went on after its end"
            tokens = tokens_of(outputs)
            expected = answer(prompt, min(max_tokens, limit - len(prompt)), seed=seed, vocab_size=VOCABULARY)
            if end.reason is FinishReason.ABORT:
                expected = expected[: len(tokens)]
            assert tokens == expected, f"sequence {seq_id}: not its own answer"


@pytest.mark.parametrize(("hash_name", "max_in_flight"), [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 3)])
def test_random_operations_keep_the_invariants_and_everyone_gets_its_own_answer(hash_name, max_in_flight):
    seed, rng = seeded()
    config = make_config(num_blocks=24)
    executor = FakeExecutor(config, vocab_size=VOCABULARY, max_in_flight=max_in_flight)
    engine = Engine(config, executor, hash_block=hash_block if hash_name == "strong" else weak_hash)
    engine.start()
    traffic = Traffic(engine, rng)
    try:
        for _ in range(NUM_OPERATIONS):
            traffic.operate()
            engine.scheduler.check()
        while engine.has_work:
            traffic.note(engine.step())
        engine.scheduler.check()
        traffic.check_answers()
    except Exception as error:
        num_done = sum(traffic.done.values())
        raise AssertionError(f"after {num_done} operations: {error}; repeat with LLM_RAY_TEST_SEED={seed}") from error
    stats = engine.stats()
    assert num_used_blocks(engine) == 0
    assert min(traffic.done.values()) > 100, traffic.done
    assert min(stats.num_preemptions, stats.num_cached_tokens, stats.num_evicted_blocks) > 20, stats


def test_random_operations_on_blocks_alone_keep_the_invariants():
    seed, rng = seeded()
    blocks, living = BlockManager(20, 4), dict[int, Sequence]()
    operation = 0
    try:
        for operation in range(NUM_OPERATIONS):
            operate_on_blocks(blocks, living, rng, operation)
            blocks.check(sequence.block_table for sequence in living.values())
    except Exception as error:
        raise AssertionError(f"operation {operation}: {error}; repeat with LLM_RAY_TEST_SEED={seed}") from error
    assert min(blocks.counters.num_cached_tokens, blocks.counters.num_evicted_blocks) > 100


def operate_on_blocks(blocks: BlockManager, living: dict[int, Sequence], rng: random.Random, operation: int) -> None:
    if len(living) > 5 or (living and rng.random() < 0.3):
        sequence = living.pop(rng.choice(list(living)))
        table = list(sequence.block_table)
        blocks.free(sequence)
        if table and not any(set(table) & set(other.block_table) for other in living.values()):
            with pytest.raises(ValueError, match="not in use"):
                blocks.free_blocks(table)
        return
    if living and rng.random() < 0.5:
        sequence = rng.choice(list(living.values()))
    else:
        sequence = living.setdefault(operation, make_sequence(operation, random_prompt(rng)))
    if sequence.num_computed_tokens % blocks.block_size == 0:
        blocks.share(sequence, blocks.match(sequence))
    end = rng.randint(sequence.num_computed_tokens, sequence.num_tokens)
    if blocks.allocate(sequence, end):
        blocks.publish(sequence, end)
        sequence.num_computed_tokens = end


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_random_arrivals_end_once_within_budgets_in_order_with_the_tokens_of_one_at_a_time(max_in_flight):
    seed, rng = seeded()
    engine = make_engine(max_in_flight=max_in_flight, num_blocks=20, max_num_seqs=6, max_num_batched_tokens=16)
    prompts = {i: (random_prompt(rng), rng.randrange(1, 24)) for i in range(150)}
    outputs: dict[int, list[Output]] = {i: [] for i in prompts}
    arrivals = iter(prompts.items())
    arrival = next(arrivals, None)
    while arrival is not None or engine.has_work:
        while arrival is not None and rng.random() < 0.4:
            seq_id, (prompt, max_tokens) = arrival
            engine.add(make_sequence(seq_id, prompt, max_tokens=max_tokens))
            arrival = next(arrivals, None)
        for seq_id, output in engine.step():
            outputs[seq_id].append(output)
        engine.scheduler.check()
    repeat = f"repeat with LLM_RAY_TEST_SEED={seed}"
    alone = make_engine(num_blocks=20, prefix_caching=False)
    for seq_id, (prompt, max_tokens) in prompts.items():
        expected = run(alone, [make_sequence(seq_id, prompt, max_tokens=max_tokens)])[seq_id]
        assert outputs[seq_id] == expected, f"sequence {seq_id}, {repeat}"
        assert sum(isinstance(output, FinishOutput) for output in outputs[seq_id]) == 1, repeat
    check_plans(engine, repeat)
    assert engine.stats().num_preemptions > 0, repeat
    assert engine.stats().num_cached_tokens > 0, repeat
    assert num_used_blocks(engine) == 0, repeat


def check_plans(engine: Engine, repeat: str) -> None:
    config, started = engine.config, list[int]()
    for plan in plans_of(engine):
        assert plan.num_tokens <= config.max_num_batched_tokens, repeat
        assert len(plan.seq_ids) <= config.max_num_seqs, repeat
        assert max(num_scheduled(plan).values()) <= config.long_prefill_token_threshold, repeat
        started += [seq_id for seq_id in plan.seq_ids if seq_id not in started]
    assert started == sorted(started), f"not first come, first served; {repeat}"
