"""The copy line of a GPU, over streams that are played by hand: as late and as early as may be."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch

from octavo.scheduler.plan import StepPlan
from octavo.workers.copy_stream import CopyStream
from octavo.workers.crossing import Gathering
from octavo.workers.host import host_blocks
from octavo.workers.transfers import runs, torch_copy
from tests.workers.streams import FakeStream, FakeStreams, StreamKernels
from tests.workers.test_tiers import BLOCKS, HOST_BLOCKS, WIDTH, random_plans

MAIN, OUT, IN = 0, 1, 2
AS_THEY_LIE = Gathering(below=0)
GATHERED = Gathering(saving=0, room=2 * WIDTH * 8)  # two blocks at a time, though it save nothing
both_ways = pytest.mark.parametrize("gathering", [AS_THEY_LIE, GATHERED], ids=["lying", "gathered"])


class Unfenced(CopyStream):
    """Does not wait for copies that read what is about to be written."""

    def _fence(self, written: Iterable[int]) -> None:
        pass


class Impatient(CopyStream):
    """The main line waits for nothing."""

    def _await(self, ticket: int) -> None:
        pass


class Careless(CopyStream):
    """What comes in does not wait for what goes out."""

    def _wait_for_outward(self, stream, pairs):
        pass


class Sharing(CopyStream):
    """Both directions have one staging buffer."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        out, into = (line.crossing for line in self._lines.values())
        into.staging = out.staging


class Hasty(FakeStream):
    """A stream that waits for no other stream's work, only for single events."""

    def wait_stream(self, stream: FakeStream) -> None:
        pass


class Gpu:
    """Both tiers as in `test_tiers`, with the main line's computing queued like everything else."""

    def __init__(
        self, kind=CopyStream, stream=FakeStream, seed=0, favoured=None, gathering=AS_THEY_LIE
    ):
        self.streams = FakeStreams(stream)
        self.rng, self.favoured = random.Random(seed), favoured
        self.cache = torch.arange(BLOCKS).repeat(WIDTH, 1).T.contiguous()
        self.host = host_blocks(HOST_BLOCKS, WIDTH * 8, torch.device("cpu"))
        self.host_values = self.host.view(torch.int64)
        self.host_values[:] = -torch.arange(HOST_BLOCKS)[:, None]
        kernels = StreamKernels(self.streams)
        copy = self.streams.copy
        self.tiers = kind(self.cache, self.host, kernels, self.streams, copy, gathering)
        self.found = []

    def step(self, plan, writes):
        """Queues a plan. What its computing will find goes to `found`; then a few things happen."""
        self.tiers.before(plan, writes)

        def compute():
            self.found.append(self.cache[:, 0].tolist())
            for block, value in writes.items():
                self.cache[block] = value

        self.streams.current().do(compute)
        self.tiers.after(plan)
        for _ in range(self.rng.randrange(6)):
            self.streams.advance(self.rng, self.favoured)

    def finish(self):
        self.streams.finish(self.rng, self.favoured)
        return self.found, self.host_values[:, 0].tolist()


def one_after_another(plans):
    """What each step finds, and what the host has in the end."""
    device, host, found = list(range(BLOCKS)), [-block for block in range(HOST_BLOCKS)], []
    for plan, writes in plans:
        for read, written, moves in (
            (device, host, plan.swap_out),
            (host, device, plan.swap_in),
            (device, device, plan.copy),
        ):
            for source, target in moves:
                written[target] = read[source]
        found.append(device.copy())
        for block, value in writes.items():
            device[block] = value
        for source, target in plan.store:
            host[target] = device[source]
    return found, host


def follow(gpu, seed):
    for plan, writes in random_plans(seed):
        gpu.step(plan, writes)
    return gpu.finish()


@both_ways
@pytest.mark.parametrize(
    "favoured", [None, MAIN, OUT, IN], ids=["random", "late", "out early", "in early"]
)
@pytest.mark.parametrize("seed", range(4))
def test_whenever_copies_are_made_steps_find_the_same(seed, favoured, gathering):
    expected = one_after_another(random_plans(seed))
    assert follow(Gpu(seed=seed, favoured=favoured, gathering=gathering), seed) == expected


@both_ways
@pytest.mark.parametrize(
    "kind, stream, favoured",
    [
        (Unfenced, FakeStream, MAIN),
        (Impatient, FakeStream, MAIN),
        (CopyStream, Hasty, OUT),
        (CopyStream, Hasty, IN),
        (Careless, FakeStream, IN),
    ],
)
def test_a_missing_wait_of_any_side_would_be_seen(kind, stream, favoured, gathering):
    gpu = Gpu(kind, stream, favoured=favoured, gathering=gathering)
    assert follow(gpu, 0) != one_after_another(random_plans(0))


def test_a_staging_buffer_for_both_directions_would_be_seen():
    gpu = Gpu(Sharing, gathering=GATHERED)
    assert follow(gpu, 0) != one_after_another(random_plans(0))


@both_ways
@pytest.mark.parametrize("favoured", [MAIN, OUT, IN])
def test_what_comes_into_a_block_that_went_out_comes_after(favoured, gathering):
    """In one step, and in the next, by its place on the device and by its place on the host."""
    gpu = Gpu(favoured=favoured, gathering=gathering)
    gpu.step(StepPlan(0, [], swap_out=[(1, 1), (2, 2)], swap_in=[(3, 1)], store=[(5, 4)]), {})
    gpu.step(StepPlan(1, [], swap_in=[(6, 5), (1, 7), (4, 8)]), {})
    found, host = gpu.finish()
    assert (found[0][1], found[1][5], found[1][7], found[1][8]) == (-3, -6, 1, 5)
    assert (host[1], host[2], host[4]) == (1, 2, 5)


def test_what_comes_in_overtakes_what_goes_out_elsewhere():
    gpu = Gpu()
    gpu.tiers.after(StepPlan(0, [], store=[(1, 1), (2, 2)]))
    gpu.tiers.before(StepPlan(1, [], swap_in=[(5, 3)]), {3: 30})
    outward = gpu.streams.streams[OUT].queue
    left = len(outward)
    while gpu.streams.streams[MAIN].advance() or gpu.streams.streams[IN].advance():
        pass
    assert int(gpu.cache[3, 0]) == -5 and not gpu.streams.streams[MAIN].queue
    assert len(outward) == left


def test_the_main_line_waits_only_for_what_it_touches():
    gpu = Gpu()
    main = gpu.streams.streams[MAIN]
    gpu.tiers.before(StepPlan(0, [], store=[(1, 1), (2, 2)]), {})
    gpu.tiers.after(StepPlan(0, [], store=[(1, 1), (2, 2)]))
    gpu.tiers.before(StepPlan(1, []), {5: 50})
    assert sum(not callable(work) for work in main.queue) == 0
    gpu.tiers.before(StepPlan(2, []), {2: 20})
    assert sum(not callable(work) for work in main.queue) == 1


def test_copies_are_counted_and_timed_when_they_are_done():
    gpu = Gpu()
    gpu.tiers.after(StepPlan(0, [], store=[(1, 1), (2, 2), (7, 4)]))
    assert gpu.tiers.take_copied() == (0, 0.0)
    gpu.finish()
    blocks, seconds = gpu.tiers.take_copied()
    assert blocks == 3 and seconds == pytest.approx(0.003)  # two copies and the end's event
    gpu.tiers.after(StepPlan(1, [], store=[(3, 3)]))
    gpu.tiers.before(StepPlan(2, [], swap_in=[(9, 9)]), [])
    while gpu.streams.streams[IN].advance() or gpu.streams.streams[MAIN].advance():
        pass
    assert gpu.tiers.take_copied() == (0, 0.0)  # in their order, whichever comes first
    gpu.finish()
    assert gpu.tiers.take_copied()[0] == 2
    assert gpu.tiers.take_copied() == (0, 0.0)


def test_neighbours_that_go_to_neighbours_are_one_copy():
    assert runs([]) == []
    assert runs([(1, 5), (2, 6), (3, 7), (9, 8), (4, 1), (6, 2)]) == [
        (1, 5, 3),
        (9, 8, 1),
        (4, 1, 1),
        (6, 2, 1),
    ]
    rng = random.Random(0)
    for _ in range(100):
        pairs = [(rng.randrange(6), target) for target in rng.sample(range(6), 4)]
        sources, targets = torch.randint(0, 255, (2, 6, 8), dtype=torch.uint8)
        expected = targets.clone()
        for source, target in pairs:
            expected[target] = sources[source]
        torch_copy(sources, targets, runs(pairs))
        assert torch.equal(targets, expected)
