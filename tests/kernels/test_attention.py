"""Paged attention against the reference, and against itself in other company."""

import random

import pytest
import torch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}
DIMS = (8, 16, 40, 64, 80, 96, 128, 256)
HEADS = [(4, 4), (9, 3), (8, 1), (2, 2), (14, 2), (70, 1)]


def mixed_work(lengths, rng):
    """For each row a decode, a chunk of a prompt or a whole short prompt, in any order."""
    work = []
    for row, length in enumerate(lengths):
        start = rng.choice([length - 1, max(0, length - 64), rng.randrange(length)])
        work.append((row, max(start, length - 128), length))
    rng.shuffle(work)
    return work


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_matches_the_reference(kernels, reference, contexts, block_size, dtype):
    rng = random.Random(block_size)
    for dim in DIMS if block_size == 16 else rng.sample(DIMS, 2):
        heads, kv_heads = rng.choice(HEADS)
        lengths = [rng.randint(1, 90), rng.randint(1, 150), block_size, rng.randint(500, 600)]
        rows = contexts(lengths, heads, kv_heads, dim, block_size, dtype, seed=dim)
        work = mixed_work(lengths, rng)
        before = [(row, 0, start) for row, start, _ in work if start > 0]
        results = []
        for implementation in (kernels, reference):
            cache = rows.empty_cache()
            rows.write(implementation, cache, before)
            results.append(rows.step(implementation, cache, work).float())
        torch.testing.assert_close(*results, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_other_layers_are_left_alone(kernels, contexts):
    rows = contexts([20, 5], 4, 2, 16, 16, torch.float32)
    cache = rows.empty_cache()
    rows.step(kernels, cache, [rows.whole(0), rows.whole(1)])
    assert cache[:, 0].isnan().all() and cache[:, 2].isnan().all()
    assert cache[0].isnan().all(), "the null block was written"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [40, 64])
def test_a_row_is_the_same_bits_alone_and_among_others(kernels, contexts, dim, dtype):
    lengths = [1500, 3, 64, 700, 513, 1]
    rows = contexts(lengths, 9, 3, dim, 16, dtype)
    cache = rows.empty_cache()
    rows.write(kernels, cache, [rows.whole(row) for row in range(len(lengths))])
    work = [(0, 1499, 1500), (1, 0, 3), (2, 63, 64), (3, 500, 700), (4, 512, 513), (5, 0, 1)]
    together = rows.step(kernels, cache, work)
    at = 0
    for piece in work:
        alone = rows.step(kernels, cache, [piece])
        assert torch.equal(alone, together[at : at + len(alone)]), piece
        at += len(alone)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_threads_do_not_change_the_bits(best_kernels, contexts, dtype):
    lengths = [1500, 64, 700, 513] + [600] * 8
    rows = contexts(lengths, 9, 3, 64, 16, dtype)
    work = [(0, 1499, 1500), rows.whole(1), (2, 600, 700), (3, 512, 513)]
    work += [(row, 599, 600) for row in range(4, 12)]
    cache = rows.empty_cache()
    rows.write(best_kernels, cache, [rows.whole(row) for row in range(len(lengths))])
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(rows.step(best_kernels, cache, work))
    assert all(torch.equal(results[0], other) for other in results[1:])


SHAPES = [((6, 2), 64, 16), ((4, 4), 40, 16), ((8, 1), 128, 4), ((2, 1), 96, 128)]
CUTS = [[1, 2, 512], [100, 164, 600, 601, 602], [511, 513], [*range(1, 700, 37)]]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("heads, dim, block_size", SHAPES)
def test_chunking_does_not_change_the_bits(native_kernels, contexts, heads, dim, block_size, dtype):
    kernels = native_kernels
    length = 700
    rows = contexts([length], *heads, dim, block_size, dtype)
    at_once = rows.step(kernels, rows.empty_cache(), [rows.whole(0)])
    for cuts in CUTS:
        cache = rows.empty_cache()
        chunks = [
            rows.step(kernels, cache, [(0, start, end)])
            for start, end in zip([0, *cuts], [*cuts, length], strict=True)
        ]
        assert torch.equal(torch.cat(chunks), at_once), cuts


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_large_scores_stay_finite(kernels, reference, contexts, dtype):
    rows = contexts([300, 70], 4, 2, 64, 16, dtype)
    for qkv in rows.qkv:
        qkv[:, : 6 * 64] *= 40  # scores of many hundreds: weights underflow to nothing
    work = [rows.whole(0), rows.whole(1)]
    results = [rows.step(k, rows.empty_cache(), work) for k in (kernels, reference)]
    tolerance = max(1e-3, TOLERANCE[dtype])
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rise", [0.25, 1, 20, -4])
def test_scores_that_rise_from_tile_to_tile(kernels, reference, contexts, dtype, rise):
    """Little enough for a maximum to be kept (in bfloat16), then enough to be corrected."""
    rows = contexts([700], 2, 1, 16, 16, dtype)
    (qkv,) = rows.qkv
    qkv[:, :48] = 0
    qkv[:, [0, 16]] = 4.0  # the queries: with the scale of 1/4, a key's first number is its score
    qkv[:, 32] = (torch.arange(700) // 64 * rise).to(dtype)
    work = [rows.whole(0)]
    results = [rows.step(k, rows.empty_cache(), work).float() for k in (kernels, reference)]
    torch.testing.assert_close(*results, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_values_of_one_are_averaged_to_one(kernels, contexts):
    """However the weights of a bfloat16 cache are rounded, the result is a mean."""
    rows = contexts([700, 33], 4, 2, 64, 16, torch.bfloat16)
    for qkv in rows.qkv:
        qkv[:, 6 * 64 :] = 1
    out = rows.step(kernels, rows.empty_cache(), [rows.whole(0), rows.whole(1)])
    assert (out == 1).all()


def test_rows_without_queries_are_skipped(kernels, contexts):
    rows = contexts([40, 20, 30], 4, 2, 16, 16, torch.float32)
    cache = rows.empty_cache()
    rows.write(kernels, cache, [rows.whole(row) for row in range(3)])
    with_idle = rows.step(kernels, cache, [(0, 39, 40), (1, 20, 20), (2, 25, 30)])
    without = rows.step(kernels, cache, [(0, 39, 40), (2, 25, 30)])
    assert torch.equal(with_idle, without)
    assert rows.step(kernels, cache, [(1, 20, 20)]).numel() == 0


class TestRefusals:
    """The native kernels write through raw pointers, so they must refuse what they cannot read."""

    @pytest.fixture
    def rows(self, contexts):
        return contexts([40, 20], 4, 2, 16, 16, torch.float32)

    @pytest.mark.parametrize(
        "changes, match",
        [
            ({"query": torch.zeros(3, 4, 16), "out": torch.zeros(3, 4, 16)}, "3, 4, 16"),
            ({"out": torch.zeros(2, 2, 16)}, "2, 2, 16"),
            ({"query": torch.zeros(2, 4, 8), "out": torch.zeros(2, 4, 8)}, "2, 4, 8"),
            ({"query": torch.zeros(2, 3, 16), "out": torch.zeros(2, 3, 16)}, "2, 3, 16"),
        ],
    )
    def test_shapes(self, best_kernels, rows, batch, changes, match):
        with pytest.raises(ValueError, match=match):
            self.attend(best_kernels, rows, batch, **changes)

    def test_shapes_to_write(self, best_kernels, rows, batch):
        cache, good = rows.empty_cache()[:, 1], torch.zeros(2, 2, 16)
        for bad in (torch.zeros(1, 2, 16), torch.zeros(2, 4, 16), torch.zeros(2, 2, 8)):
            with pytest.raises(ValueError, match="shape"):
                best_kernels.write_kv(good, bad, cache, batch)
            with pytest.raises(ValueError, match="shape"):
                best_kernels.write_kv(bad, good, cache, batch)

    def attend(self, kernels, rows, batch, **changes):
        given = {
            "query": torch.zeros(2, 4, 16),
            "cache": rows.empty_cache()[:, 1],
            "out": torch.zeros(2, 4, 16),
        } | changes
        kernels.attention(given["query"], given["cache"], batch, 1.0, given["out"])

    @pytest.fixture
    def batch(self, rows):
        return rows.batch([(0, 39, 40), (1, 19, 20)])

    def test_other_dtypes(self, best_kernels, rows, batch):
        with pytest.raises(TypeError, match="float16"):
            half = rows.empty_cache()[:, 1].half()
            x = torch.zeros(2, 4, 16, dtype=torch.float16)
            self.attend(best_kernels, rows, batch, cache=half, query=x, out=x)
        with pytest.raises(TypeError, match="differ"):
            self.attend(best_kernels, rows, batch, query=torch.zeros(2, 4, 16).bfloat16())

    def test_layouts(self, best_kernels, rows, batch):
        with pytest.raises(ValueError, match="heads must be contiguous"):
            self.attend(best_kernels, rows, batch, query=torch.zeros(4, 2, 16).transpose(0, 1))
        with pytest.raises(ValueError, match="must be contiguous"):
            cache = torch.zeros(rows.num_blocks, 2, 16, 2, 16).transpose(2, 3)
            self.attend(best_kernels, rows, batch, cache=cache)
        with pytest.raises(ValueError, match="multiple of 8"):
            x, cache = torch.zeros(2, 4, 12), torch.zeros(rows.num_blocks, 2, 2, 16, 12)
            self.attend(best_kernels, rows, batch, query=x, out=x, cache=cache)
        with pytest.raises(ValueError, match="the cache's 8"):
            cache = torch.zeros(rows.num_blocks, 2, 2, 8, 16)
            self.attend(best_kernels, rows, batch, cache=cache)

    @pytest.mark.parametrize(
        "field, place, value, match",
        [
            ("slots", 0, 10_000, "slot"),
            ("slots", 1, -1, "slot"),
            ("kv_indices", 0, 10_000, "block"),
            ("kv_indices", 2, -1, "block"),
            ("kv_last_page_len", 0, 17, "contradict"),
            ("qo_indptr", 2, 3, "contradict"),
            ("kv_indptr", 1, 0, "contradict"),
        ],
    )
    def test_indices_out_of_bounds(self, best_kernels, rows, batch, field, place, value, match):
        getattr(batch, field)[place] = value
        with pytest.raises(IndexError, match=match):
            self.attend(best_kernels, rows, batch)

    def test_a_good_batch_after_a_bad_one(self, best_kernels, rows, batch):
        bad = rows.batch([(0, 39, 40)])
        bad.slots[0] = -1
        with pytest.raises(IndexError):
            self.attend(best_kernels, rows, bad)
        with pytest.raises(IndexError):
            self.attend(best_kernels, rows, bad)
        self.attend(best_kernels, rows, batch)
