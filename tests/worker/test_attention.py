"""torch_cpu attention against dense float32 softmax over random ragged steps."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_ray.worker.attention import LayerAttention
from llm_ray.worker.attention.cpu_plan import GROUP_COST, Planner, Shape
from llm_ray.worker.attention.torch_cpu import TorchCpuAttention

BLOCK = 4
HEADS = [(9, 3), (6, 2), (3, 1), (8, 8), (4, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
ALWAYS_GROUP = Shape(BLOCK, 9, 192, torch.float32, group_cost=0)


@dataclass(frozen=True)
class Step:
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    runs: list[tuple[int, int, int]]


def make_step(rows: list[tuple[list[int], int, int]], runs: list[tuple[int, int, int]], block: int = BLOCK) -> Step:
    """rows: (block table, sequence length, tokens in this step)."""
    starts, slots = [0], []
    for table, length, count in rows:
        starts.append(starts[-1] + count)
        slots += [table[at // block] * block + at % block for at in range(length - count, length)]
    widest = max(len(table) for table, _, _ in rows)
    return Step(
        slot_mapping=torch.tensor(slots),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([length for _, length, _ in rows], dtype=torch.int32),
        block_tables=torch.tensor([t + [0] * (widest - len(t)) for t, _, _ in rows], dtype=torch.int32),
        runs=runs,
    )


def make_runs(rows: list[tuple[list[int], int, int]], sizes: list[int]) -> list[tuple[int, int, int]]:
    """Runs of the given sizes from row 0 on, each with as many common leading full blocks as its tables have."""
    runs, first = [], 0
    for size in sizes:
        tables = [table for table, _, _ in rows[first : first + size]]
        full = min(length // BLOCK for _, length, _ in rows[first : first + size])
        common = 0
        while common < full and len({table[common] for table in tables}) == 1:
            common += 1
        runs.append((first, first + size, common))
        first += size
    return runs


def dense(layer: LayerAttention, query: torch.Tensor, stored: torch.Tensor, step: Step, block: int) -> torch.Tensor:
    """One query token at a time, one head at a time, in float32. stored: [2, slots, num_kv_heads, head_dim]."""
    out = torch.empty(query.shape)
    for row, length in enumerate(step.seq_lens.tolist()):
        first, end = step.query_start_loc[row : row + 2].tolist()
        for token in range(first, end):
            at = length - (end - token)
            seen = range(max(0, at - layer.sliding_window + 1) if layer.sliding_window else 0, at + 1)
            slots = [int(step.block_tables[row, j // block]) * block + j % block for j in seen]
            for head in range(layer.num_heads):
                keys, values = stored[:, slots, head * layer.num_kv_heads // layer.num_heads].float()
                scores = keys @ query[token, head].float() * layer.scale
                if layer.softcap:
                    scores = layer.softcap * torch.tanh(scores / layer.softcap)
                out[token, head] = scores.softmax(0) @ values
    return out


def run(
    layers: list[LayerAttention],
    step: Step,
    *,
    dtype: torch.dtype = torch.float32,
    cascade: bool = True,
    num_blocks: int = 64,
    block: int = BLOCK,
    seed: int = 0,
    group_cost: int = 0,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the backend gives for each layer, and what it should. Outputs start as NaN, this step's slots as 1000."""
    generator = torch.Generator().manual_seed(seed)
    backend = TorchCpuAttention(layers, num_blocks, dtype, block, cascade=cascade, group_cost=group_cost)
    everything = Step(torch.arange(num_blocks * block), *(getattr(step, name) for name in list(vars(step))[1:]))
    got, wanted = [], []
    backend.plan(step)
    for index, layer in enumerate(layers):
        shape = (2, num_blocks * block, layer.num_kv_heads, layer.head_dim)
        stored = torch.randn(shape, generator=generator).to(dtype)
        query = torch.randn(len(step.slot_mapping), layer.num_heads, layer.head_dim, generator=generator).to(dtype)
        before = stored.clone()
        before[:, step.slot_mapping] = 1000.0
        backend.write(index, before[0], before[1], everything)
        # As in the model: key and value are strided slices of one product.
        fused = torch.cat([stored[0, step.slot_mapping], stored[1, step.slot_mapping]], dim=1)
        backend.write(index, fused[:, : layer.num_kv_heads], fused[:, layer.num_kv_heads :], step)
        out = torch.full_like(query, float("nan"))
        backend.attend(index, query, step, out)
        got.append(out.float())
        wanted.append(dense(layer, query, stored, step, block))
    return got, wanted


def assert_close(pair: tuple[list[torch.Tensor], list[torch.Tensor]], tolerance: float) -> None:
    for got, wanted in zip(*pair, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@st.composite
def ragged_rows(draw: st.DrawFn) -> tuple[list[tuple[list[int], int, int]], list[int]]:
    """Decode rows, then short chunks, each grouped behind shared or own prefixes, then other chunks; and run sizes."""
    free = list(range(64))
    random.Random(draw(st.integers(0, 1 << 30))).shuffle(free)
    rows, sizes = [], []

    def table(prefix: list[int], length: int) -> list[int]:
        return prefix + [free.pop() for _ in range(-(-length // BLOCK) - len(prefix))]

    for is_decode in (True, False):
        for _ in range(draw(st.integers(0, 2))):
            prefix = [free.pop() for _ in range(draw(st.integers(0, 2)))]
            size = draw(st.integers(1, 3))
            for _ in range(size):
                count = 1 if is_decode else draw(st.integers(1, 5))
                length = len(prefix) * BLOCK + count + draw(st.integers(0, 7))
                rows.append((table(prefix, length), length, count))
            sizes.append(size)
    for _ in range(draw(st.integers(0 if rows else 1, 2))):
        length = draw(st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 11]))
        rows.append((table([], length), length, draw(st.integers(1, length))))
    return rows, sizes


@settings(max_examples=150, deadline=None)
@given(
    plan=ragged_rows(),
    heads=st.sampled_from(HEADS),
    head_dim=st.sampled_from([16, 20, 64]),
    window=st.sampled_from([0, 0, 1, 3, 4, 6, 100]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    group_cost=st.sampled_from([0, 2000, GROUP_COST]),
    seed=st.integers(0, 1000),
)
def test_any_ragged_step_equals_dense_attention(plan, heads, head_dim, window, softcap, dtype, group_cost, seed):
    rows, sizes = plan
    plain = LayerAttention(*heads, head_dim, head_dim**-0.5)
    # Scores beyond about 8 would cost bfloat16 more than the tolerance: it keeps 8 bits of them, as in HF's eager path.
    special = LayerAttention(*heads, head_dim, 1.2 * head_dim**-0.5, window, softcap)
    pair = run([plain, special], make_step(rows, make_runs(rows, sizes)), dtype=dtype, seed=seed, group_cost=group_cost)
    assert_close(pair, TOLERANCE[dtype])


@settings(max_examples=60, deadline=None)
@given(plan=ragged_rows(), heads=st.sampled_from(HEADS), softcap=st.sampled_from([0.0, 2.0]), seed=st.integers(0, 99))
def test_cascade_equals_no_cascade_for_any_grouping(plan, heads, softcap, seed):
    rows, sizes = plan
    step = make_step(rows, make_runs(rows, sizes))
    layers = [LayerAttention(*heads, 256, 256**-0.5, 0, softcap)]
    with_cascade, _ = run(layers, step, seed=seed)
    without, _ = run(layers, step, seed=seed, cascade=False)
    torch.testing.assert_close(with_cascade, without, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_lengths_around_a_block_edge_are_exact(dtype, heads, block, edge):
    length = 2 * block + edge
    rows = [([9, 30, 2], length, 1), ([11, 5, 40], length, 1), ([7, 1, 3], length, block), ([4, 6, 8], length, length)]
    step = make_step(rows, [(0, 2, 0)], block)
    assert_close(run([LayerAttention(*heads, 32, 0.2)], step, dtype=dtype, block=block), TOLERANCE[dtype])


@pytest.mark.parametrize("prefix_blocks", [1, 2])
def test_a_shared_prefix_is_attended_once_and_a_leaving_request_changes_nothing(prefix_blocks):
    prefix = list(range(prefix_blocks))
    # Own parts of one token (the query itself), of part of a block, and of several blocks.
    own_lens = (1, 3, 8)
    rows = [([*prefix, 10 + 4 * i, 11 + 4 * i], prefix_blocks * BLOCK + own, 1) for i, own in enumerate(own_lens)]
    layers = [LayerAttention(9, 3, 256, 0.06)]
    for kept in ([0, 1, 2], [0, 2], [1, 2], [1]):
        some = [rows[i] for i in kept]
        step = make_step(some, [(0, len(some), prefix_blocks)])
        plan = Planner(step, ALWAYS_GROUP).make(0)
        assert [group.prefix is not None for group in plan.groups] == [True] * (len(kept) > 1)
        assert_close(run(layers, step), 1e-5)


def test_a_prefix_that_reaches_into_a_rows_own_query_is_not_shared_that_far():
    # The second row's only query is the last token of the second common block.
    rows = [([0, 1, 2], 9, 1), ([0, 1], 8, 1)]
    step = make_step(rows, [(0, 2, 2)])
    plan = Planner(step, ALWAYS_GROUP).make(0)
    assert plan.groups[0].prefix.tolist() == [0]
    assert_close(run([LayerAttention(9, 3, 32, 0.2)], step), 1e-5)


def test_a_window_that_ends_inside_the_prefix_turns_cascade_off_for_that_layer_only():
    rows = [([0, 1, 2, 10 + row], 13 + row, 1) for row in range(3)]
    step = make_step(rows, [(0, 3, 3)])
    planner = Planner(step, ALWAYS_GROUP)
    assert planner.make(0).groups[0].prefix is not None
    assert all(group.prefix is None for group in planner.make(6).groups)
    layers = [LayerAttention(9, 3, 32, 0.2, window) for window in (0, 6, 9, 12, 13, 15, 16)]
    assert_close(run(layers, step), 1e-5)


def test_short_chunks_of_different_lengths_behind_one_prefix_are_padded_and_unpadded():
    rows = [([5, 6, 20 + 2 * row, 21 + 2 * row], 8 + count, count) for row, count in enumerate((4, 1, 7, 8))]
    step = make_step(rows, [(0, 4, 2)])
    assert_close(run([LayerAttention(9, 3, 16, 0.25), LayerAttention(4, 1, 80, 0.1, 5, 3.0)], step), 1e-5)


def test_rows_of_very_different_lengths_are_attended_in_separate_groups():
    rows = [([row], 2 + row % 3, 1) for row in range(6)] + [(list(range(10, 50)), 160 - row, 1) for row in range(2)]
    random.Random(1).shuffle(rows)
    step = make_step(rows, [(0, len(rows), 0)])
    plan = Planner(step, Shape(BLOCK, 9, 192, torch.float32)).make(0)
    assert sorted(group.num_rows for group in plan.groups) == [2, 6]
    assert_close(run([LayerAttention(9, 3, 64, 0.125)], step, group_cost=GROUP_COST), 1e-5)


def test_a_long_prompt_is_attended_in_tiles(monkeypatch):
    monkeypatch.setattr("llm_ray.worker.attention.cpu_plan.TILE_ROWS", 5)
    step = make_step([(list(range(30, 0, -1)), 117, 64), ([40, 41, 42], 12, 12)], [])
    layers = [LayerAttention(6, 2, 16, 0.25, *special) for special in ((), (9,), (20, 4.0))]
    assert_close(run(layers, step), 1e-5)


def test_groups_are_cut_when_their_scratch_memory_would_grow_past_the_bound(monkeypatch):
    monkeypatch.setattr("llm_ray.worker.attention.cpu_plan.MAX_GROUP_ELEMENTS", 4096)
    rows = [([0, 1, 10 + row], 10, 1) for row in range(7)] + [([20 + row], 3, 1) for row in range(9)]
    step = make_step(rows, [(0, 7, 2), (7, 16, 0)])
    plan = Planner(step, ALWAYS_GROUP).make(0)
    assert max(group.num_rows for group in plan.groups) < 7
    assert_close(run([LayerAttention(9, 3, 64, 0.125)], step), 1e-5)


def test_a_sequence_reads_blocks_that_another_one_fills_in_the_same_step():
    # The first row computes the shared prefix; the second starts behind it and brings only its own tokens.
    rows = [([0, 1, 2, 4], 13, 1), ([0, 1, 2], 10, 2), ([0, 1, 3], 11, 11)]
    step = make_step(rows, [(0, 1, 2), (1, 2, 2)])
    assert_close(run([LayerAttention(9, 3, 64, 0.125)], step), 1e-5)


def test_nan_from_another_sequences_freed_block_never_reaches_a_padded_row_in_half_precision():
    layer = LayerAttention(4, 2, 16, 0.25)
    backend = TorchCpuAttention([layer], 8, torch.float16, BLOCK)
    spoiled = torch.full((8 * BLOCK, 2, 16), float("inf"), dtype=torch.float16)
    rows = [([1], 1, 1), ([2, 3], 5, 1)]
    step = make_step(rows, [(0, 2, 0)])
    everything = Step(torch.arange(8 * BLOCK), step.query_start_loc, step.seq_lens, step.block_tables, step.runs)
    backend.write(0, spoiled, -spoiled, everything)
    backend.plan(step)
    good = torch.zeros(8 * BLOCK, 2, 16, dtype=torch.float16)
    own = Step(torch.tensor([4, 8, 9, 10, 11, 12]), *(getattr(step, name) for name in list(vars(step))[1:]))
    backend.write(0, good[:6], good[:6], own)
    out = torch.full((2, 4, 16), float("nan"), dtype=torch.float16)
    backend.attend(0, torch.ones(2, 4, 16, dtype=torch.float16), step, out)
    assert out.eq(0).all()


def test_a_copied_block_gives_the_same_attention_and_leaves_the_source_alone():
    layers = [LayerAttention(9, 3, 64, 0.125), LayerAttention(6, 2, 32, 0.2)]
    generator = torch.Generator().manual_seed(3)
    backend = TorchCpuAttention(layers, 8, torch.float32, BLOCK)
    original, copied = make_step([([1, 2], 7, 1)], [(0, 1, 0)]), make_step([([5, 2], 7, 1)], [(0, 1, 0)])
    everything = Step(torch.arange(32), *(getattr(original, name) for name in list(vars(original))[1:]))
    queries = []
    for index, layer in enumerate(layers):
        key, value = torch.randn(2, 32, layer.num_kv_heads, layer.head_dim, generator=generator)
        backend.write(index, key, value, everything)
        queries.append(torch.randn(1, layer.num_heads, layer.head_dim, generator=generator))

    def attend(step: Step) -> list[torch.Tensor]:
        outs = [torch.full_like(query, float("nan")) for query in queries]
        backend.plan(step)
        for index, query in enumerate(queries):
            backend.attend(index, query, step, outs[index])
        return outs

    wanted = attend(original)
    assert not any(torch.equal(a, b) for a, b in zip(attend(copied), wanted, strict=True))
    backend.copy_block(1, 5)
    assert all(torch.equal(a, b) for a, b in zip(attend(copied), wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(attend(original), wanted, strict=True))
