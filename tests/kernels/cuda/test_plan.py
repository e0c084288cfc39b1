"""FlashInfer's plans, carried out by its twin, against the reference."""

import random
from dataclasses import replace

import pytest
import torch

from octavo.kernels.base import Batch
from octavo.kernels.cuda.plan import Planner, Shape
from octavo.kernels.quantized import FP8, narrowed
from tests.kernels.cuda import twin

CPU = torch.device("cpu")
LAYER = 1


@pytest.fixture
def planner():
    return Planner(twin, CPU)


def filled(rows, reference):
    cache = rows.empty_cache()
    rows.write(reference, cache, [rows.whole(row) for row in range(len(rows.lengths))])
    return cache


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1.6e-2, rtol=1.6e-2)


def attend(attention, rows, cache, work, batch=None):
    query, *_ = rows.parts(work)
    batch = rows.batch(work) if batch is None else batch
    out = torch.full(query.shape, float("nan"), dtype=rows.dtype)
    attention(query, cache[:, LAYER], batch, rows.dim**-0.5, out)
    return out


def both(planner, reference, rows, cache, work):
    """The planner's results, and the reference's."""
    return [attend(f, rows, cache, work) for f in (planner.attend, reference.attention)]


@pytest.mark.parametrize("seed", range(8))
def test_ragged_batches(planner, reference, contexts, seed):
    """Decodes and chunks in the scheduler's order, and in any, one planner after another batch."""
    rng = random.Random(seed)
    heads, kv_heads = rng.choice([(4, 4), (9, 3), (8, 1)])
    lengths = [rng.randint(1, 200) for _ in range(6)]
    rows = contexts(lengths, heads, kv_heads, 64, rng.choice([4, 16, 32]), torch.bfloat16, seed)
    cache = filled(rows, reference)
    for _ in range(3):
        work = []
        for row in rng.sample(range(6), rng.randint(1, 6)):
            start = rng.choice([lengths[row] - 1, rng.randrange(lengths[row])])
            work.append((row, start, lengths[row]))
        if rng.random() < 0.5:
            work.sort(key=lambda piece: piece[2] - piece[1])
        close(*both(planner, reference, rows, cache, work))


@pytest.mark.parametrize("chunk", [False, True])
def test_a_prefix_that_all_share_is_attended_once(planner, reference, contexts, chunk):
    shared = 600
    lengths = [shared + n for n in (1, 40, 8, 8, 17, 3, 90, 30, 2)]
    rows = contexts(lengths, 8, 2, 64, 16, torch.bfloat16)
    for row in range(1, len(lengths)):
        rows.tables[row][: shared // 16] = rows.tables[0][: shared // 16]
        rows.qkv[row][:shared] = rows.qkv[0][:shared]
    cache = filled(rows, reference)
    work = [(row, length - 1, length) for row, length in enumerate(lengths)]
    if chunk:
        work[-2:] = [(7, shared, lengths[7]), (8, lengths[8] - 1, lengths[8])]
    close(*both(planner, reference, rows, cache, work))
    assert planner._shared is not None and len(planner._parts) == 1 + chunk
    first = sum(len(part.wrapper.arrays[2]) for part in planner._parts)
    assert first == sum(-(-length // 16) - shared // 16 for length in lengths)


def test_a_narrow_cache(planner, reference, contexts):
    rows = contexts([100, 9], 4, 2, 64, 16, torch.bfloat16)
    cache = narrowed(filled(rows, reference).nan_to_num(nan=0.0), FP8)
    close(*both(planner, reference, rows, cache, [(0, 99, 100), (1, 4, 9)]))


def test_one_plan_serves_all_layers(planner, reference, contexts):
    rows = contexts([50, 7], 4, 2, 64, 16, torch.bfloat16)
    cache = filled(rows, reference)
    work = [(0, 49, 50), (1, 6, 7)]
    attend(planner.attend, rows, cache, work)
    batch = rows.batch(work)
    planner.begin(batch)
    (part,) = planner._parts
    before = part.wrapper.plans
    for _ in range(3):
        attend(planner.attend, rows, cache, work, batch)
    planner.begin(batch)
    assert part.wrapper.plans == before
    attend(planner.attend, rows, cache, work, rows.batch(work))  # not begun
    assert part.wrapper.plans == before + 1


def test_begin_waits_for_a_shape(planner, contexts):
    rows = contexts([50], 4, 2, 64, 16, torch.bfloat16)
    planner.begin(rows.batch([(0, 49, 50)]))
    assert planner._parts == []


class Graph:
    """A step in tensors that stay where they are, and its kernel calls."""

    def __init__(self, rows, blocks, contexts):
        def zeros(n):
            return torch.zeros(n, dtype=torch.int32)

        self.batch = Batch(
            zeros(rows + 1), zeros(rows + 1), zeros(blocks), zeros(rows), zeros(rows), 16,
            static=True,
        )  # fmt: skip
        self.query = torch.zeros(rows, contexts.heads, contexts.dim, dtype=contexts.dtype)
        self.out = torch.zeros_like(self.query)

    def place(self, contexts, work):
        """Fills up with rows in the null block, and tells what lies in the host's memory."""
        own, rows = contexts.batch(work), len(self.batch.slots)
        missing = rows - len(work)
        ones = torch.arange(1, missing + 1, dtype=torch.int32)
        filling = torch.zeros(missing, dtype=torch.int32)
        host = Batch(
            torch.arange(rows + 1, dtype=torch.int32),
            torch.cat((own.kv_indptr, own.kv_indptr[-1] + ones)),
            torch.cat((own.kv_indices, filling)),
            torch.cat((own.kv_last_page_len, filling + 1)),
            torch.cat((own.slots, filling)),
            16,
        )
        self.batch.kv_indices[: len(host.kv_indices)] = host.kv_indices
        self.query[: len(work)] = contexts.parts(work)[0]
        return replace(self.batch, host=host)


def test_graphs_have_plans_of_their_own(planner, reference, contexts):
    """Recorded once, each is played on what `begin` has planned since, and no other disturbs it."""
    rows = contexts([100, 35, 64, 1], 8, 2, 64, 16, torch.bfloat16)
    cache = filled(rows, reference)
    cache[0] = 0  # what rows that fill up read
    graphs = {size: Graph(size, 40, rows) for size in (2, 4)}
    recorded = {}
    for size, graph in graphs.items():
        batch = graph.place(rows, [])
        arguments = graph.query, cache[:, LAYER], batch, 0.125, graph.out
        planner.attend(*arguments)  # the call that warms up, from which the shape is learnt
        planner.begin(batch)
        (part,) = planner._parts
        recorded[size] = part.wrapper
    steps = [
        (2, [(0, 99, 100)]),
        (4, [(0, 98, 99), (1, 34, 35), (3, 0, 1)]),
        (2, [(2, 63, 64), (1, 33, 34)]),
        (4, [(3, 0, 1)]),
    ]
    for size, work in steps:
        graph = graphs[size]
        attend(planner.attend, rows, cache, [(1, 3, 20)])  # a step that is not recorded
        planner.begin(graph.place(rows, work))
        recorded[size].run(graph.query, cache[:, LAYER], out=graph.out)  # as a replay does
        close(graph.out[: len(work)], attend(reference.attention, rows, cache, work))
        assert graph.out.isfinite().all()
    assert len({id(wrapper) for wrapper in recorded.values()}) == 2


def test_what_flashinfer_has_kernels_for():
    def shape(heads=8, kv_heads=2, dim=64, dtype=torch.bfloat16, kept=None):
        return Shape(heads, kv_heads, dim, dtype, kept or dtype, 1.0)

    assert shape().supported and shape(dim=128, dtype=torch.float16).supported
    assert not shape(dim=80).supported and not shape(dtype=torch.float32).supported
    assert shape(kept=FP8).supported and not shape(kept=torch.float16).supported
    assert shape(heads=2, kept=FP8).on_tensor_cores
    assert shape().on_tensor_cores and not shape(heads=6).on_tensor_cores


def test_results_with_gaps_are_refused(planner, reference, contexts):
    rows = contexts([5], 4, 2, 64, 16, torch.bfloat16)
    cache = filled(rows, reference)
    query, *_ = rows.parts([(0, 4, 5)])
    out = torch.zeros(1, 8, 64, dtype=torch.bfloat16)[:, ::2]
    with pytest.raises(ValueError, match="contiguous"):
        planner.attend(query, cache[:, LAYER], rows.batch([(0, 4, 5)]), 1.0, out)
