"""What sequences hold together, against a count of all tables after each plan."""

from __future__ import annotations

from collections import Counter

import msgspec

from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.setup import simulate
from octavo.cluster.simulation.sharing import Sharing
from octavo.cluster.simulation.workload import make_jobs
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.mirror import Mirror
from octavo.scheduler.plan import StepResult, Work
from octavo.scheduler.scheduler import Scheduler
from tests.cluster.simulation.setups import DEVICE, MODEL, setup


def follow_all(scheduler, jobs, sampling):
    """What `Sharing` says after each plan, and the count of the tables that workers have."""
    mirror, sharing, step = Mirror(16), Sharing(16), 0
    for job in jobs:
        scheduler.add(job.request(1, sampling), 0.0)
    while (plan := scheduler.schedule(float(step))) is not None:
        mirror.apply(plan)
        holders = Counter(block for row in mirror.rows.values() for block in row.table)
        yield sharing.follow(plan), 16 * sum(count - 1 for count in holders.values())
        tokens = [step * 1000 + at for at in range(sum(work.sample for work in plan.work))]
        mirror.advance(plan, tokens)
        scheduler.update(StepResult(plan.step, tokens), float(step))
        step += 1


def test_it_counts_what_the_workers_tables_have_more_than_once():
    config = SchedulerConfig(max_model_len=256, max_num_batched_tokens=64)
    scheduler = Scheduler(config, Capacity(41, 16, 0, 1))
    jobs = list(make_jobs([(20, 40)] * 12, [0.0] * 12, prefix=70, prefixes=2))
    seen = list(follow_all(scheduler, jobs, {"n": 2}))
    assert [said for said, _ in seen] == [counted for _, counted in seen]
    assert max(counted for _, counted in seen) > 10 * 64
    assert scheduler.counters.preemptions > 0


def test_one_request_alone_shares_nothing():
    scheduler = Scheduler(SchedulerConfig(max_model_len=256), Capacity(41, 16, 0, 1))
    (job,) = make_jobs([(90, 20)], [0.0])
    assert {said for said, _ in follow_all(scheduler, [job], {})} == {0}


def test_what_was_read_before_costs_its_share():
    rows = [Work(row, 255, 1, True) for row in range(8)]
    cached = msgspec.structs.replace(DEVICE, repeated_read_share=0.25)
    plain, quick = Cost(DEVICE, MODEL, 1, 16), Cost(cached, MODEL, 1, 16)
    apart, one = plain.compute(rows), plain.compute(rows, repeated=7 * 128)
    assert apart == one == quick.compute(rows)
    read = apart - plain.compute([Work(row, 127, 1, True) for row in range(8)])  # of 8 * 128
    spared = apart - quick.compute(rows, repeated=7 * 128)
    assert abs(spared - 0.75 * 7 / 8 * read) < 1e-12


def test_a_simulation_is_quicker_where_a_prefix_is_read_from_a_cache():
    jobs = list(make_jobs([(2, 40)] * 10, [0.0] * 10, prefix=256))
    slow = setup(512)
    quick = slow.changed(hardware=msgspec.structs.replace(DEVICE, repeated_read_share=0.1))
    apart = list(make_jobs([(258, 40)] * 10, [0.0] * 10))
    assert simulate(quick, jobs).seconds < 0.99 * simulate(slow, jobs).seconds
    assert simulate(quick, apart) == simulate(slow, apart)
