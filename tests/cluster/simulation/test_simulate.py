"""The scheduler under a virtual clock: what comes of requests, told from what must be."""

from __future__ import annotations

import math

import msgspec
import pytest

from octavo.cluster.simulation.setup import simulate
from octavo.cluster.simulation.workload import Job, draw_arrivals, make_jobs
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.plan import Work
from tests.cluster.simulation.setups import setup


def jobs(count=40, prompt=50, answer=30, rate=math.inf, **shared):
    return list(make_jobs([(prompt, answer)] * count, draw_arrivals(rate, count, 0), **shared))


def test_a_request_alone_takes_the_sum_of_its_steps():
    one, cost = setup(), setup().cost()
    found = simulate(one, [Job(0, 5.0, 50, 3)])
    steps = [Work(0, 0, 50, True), Work(0, 50, 1, True), Work(0, 51, 1, True)]
    seconds = [cost.compute([work]) for work in steps]
    assert found.ttft.mean == pytest.approx(seconds[0])
    assert found.tpot.mean == pytest.approx(sum(seconds[1:]) / 2)
    assert found.e2e.mean == pytest.approx(sum(seconds))
    assert found.normalized_latency.mean == pytest.approx(sum(seconds) / 3)
    assert (found.requests, found.steps, found.refused) == (1, 3, 0)


def test_every_request_is_answered_whole_whatever_memory_there_is():
    for blocks in (32, 48, 512):
        found = simulate(setup(blocks), jobs())
        assert found.requests == 40
        assert found.output_throughput * found.seconds == pytest.approx(40 * 30)
        assert (found.preemptions > 0) == (blocks == 48 or blocks == 32)


def test_the_same_seed_gives_the_same_figures():
    many = jobs(rate=20.0, prefix=32, prefixes=3)
    fleet = setup(replicas=3)
    assert simulate(fleet, many) == simulate(fleet, many)
    assert draw_arrivals(2.0, 9, seed=1) == draw_arrivals(2.0, 9, seed=1)
    assert draw_arrivals(2.0, 9, seed=1) != draw_arrivals(2.0, 9, seed=2)


def test_what_cannot_ever_fit_is_counted_and_nothing_else_is_lost():
    found = simulate(setup(32), [*jobs(3), Job(9, 0.0, 600, 10)])
    assert (found.requests, found.refused) == (3, 1)


def test_a_shared_prefix_is_found_and_computed_once():
    apart = simulate(setup(512), jobs())
    shared = simulate(setup(512), jobs(prompt=2, prefix=48))
    assert apart.prefix_hit_rate == 0
    assert shared.prefix_hit_rate == pytest.approx(39 / 40 * 48 / 50)
    assert shared.computed_tokens == apart.computed_tokens - 39 * 48


def test_reserved_memory_holds_fewer_requests():
    running = {}
    for allocation in ("max", "pow2", "oracle", "paged"):
        changed = setup(128, {"allocation": allocation, "enable_prefix_caching": False})
        running[allocation] = simulate(changed, jobs(100, answer=65)).running
    assert running["max"] < running["pow2"] < running["oracle"] < running["paged"]
    assert running["max"] == pytest.approx(128 * 16 // 512, rel=0.05)


def test_memory_shares_add_up():
    shares = simulate(setup(64, {"allocation": "max"}), jobs(), look=1).memory
    assert shares is not None and sum(msgspec.structs.astuple(shares)) == pytest.approx(100)
    assert shares.wasted > 50  # 512 slots each, of which at most 79 are used


def test_samples_and_beams_count_all_their_tokens():
    four = simulate(setup(512, sampling={"n": 4, "temperature": 1.0}), jobs(5))
    assert four.output_throughput * four.seconds == pytest.approx(5 * 4 * 30)
    beams = simulate(setup(512, sampling={"beam_width": 3}), jobs(5))
    assert beams.requests == 5 and beams.output_throughput * beams.seconds == pytest.approx(5 * 30)


def test_a_coarse_run_comes_near_a_fine_one():
    many = jobs(200, 100, 64, rate=8.0)
    fine, coarse = (simulate(setup(256, grain=grain), many) for grain in (1, 8))
    for name in ("output_throughput", "running"):
        assert getattr(coarse, name) == pytest.approx(getattr(fine, name), rel=0.1)
    assert coarse.tpot.mean == pytest.approx(fine.tpot.mean, rel=0.1)
    assert coarse.ttft.mean > fine.ttft.mean  # as its help says


def test_copying_is_waited_for_where_a_request_comes_back_from_the_host():
    tight, changes = jobs(30), {"write_behind_blocks": 0}
    swapped, computed = (
        simulate(setup(40, {"preemption_mode": mode, **changes}, host_bytes=1e9), tight)
        for mode in ("swap", "recompute")
    )
    assert swapped.swapped_preemptions == swapped.preemptions > 0
    assert computed.swapped_preemptions == 0 < computed.preemptions
    assert computed.computed_tokens > swapped.computed_tokens == 30 * (50 + 29)
    assert swapped.blocks_swapped_in > 0 == computed.blocks_swapped_in


def test_objectives_are_kept_by_those_that_keep_all_of_them():
    many = jobs(rate=5.0)
    whole = simulate(setup(512), many)
    half = simulate(setup(512), many, slo={"e2el": whole.e2e.p50}).goodput
    assert half is not None and 0.5 <= half <= 0.6  # some take exactly as long as the middle one
    assert simulate(setup(512), many, slo={"ttft": 1e-9, "e2el": 1e9}).goodput == 0
    assert simulate(setup(512), many, slo={"ttft": 1e9, "tpot": 1e9}).goodput == 1


def test_a_simulation_ends_early_where_that_is_enough():
    found = simulate(setup(512), jobs(rate=5.0), enough=lambda record: len(record.e2e) >= 7)
    assert 7 <= found.requests < 40


def test_a_device_too_small_is_refused_with_the_numbers():
    with pytest.raises(InvalidRequest, match=r"small takes 0\.0 GiB of each slow.*max-model-len"):
        simulate(setup(31), jobs(1))
