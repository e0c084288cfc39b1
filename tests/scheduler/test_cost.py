"""What a step costs, in Python instructions: in proportion to the rows that it moves, and nothing
for blocks, requests and rows that it does not touch."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.group import Group
from octavo.scheduler.plan import StepResult
from octavo.scheduler.request import TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from tests.scheduler.instructions import count_instructions
from tests.scheduler.simulation import Simulation, request

BLOCK = 4
FEW, MANY = 32, 512


def step(scheduler: Scheduler) -> list[TokenEvent]:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    result = StepResult(plan.step, [7] * sum(w.sample for w in plan.work))
    return list(scheduler.update(result, 0.0))


def steps(scheduler: Scheduler) -> None:
    """As many as it takes for every row to begin a block."""
    for _ in range(BLOCK):
        step(scheduler)


def decoding(running: int, *, blocks: int = 8 * MANY, waiting: int = 0) -> Scheduler:
    """An engine in which so many run, evenly spread over the slots of a block; there is no row for
    those that wait."""
    config = SchedulerConfig(
        max_model_len=1024,
        block_size=BLOCK,
        max_num_seqs=running,
        max_num_batched_tokens=8 * max(MANY, running),
        max_num_queued_reqs=2 * max(MANY, running),
        watermark_low=0,
        watermark_high=0,
    )
    scheduler = Scheduler(config, Capacity(blocks, BLOCK))
    fill(scheduler.cache.pool)
    for number in range(running + waiting):
        prompt = [number % 60] * (5 + number % BLOCK)
        scheduler.add(request(str(number), prompt, 100, salt=str(number)), 0.0)
    steps(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (running, waiting)
    return scheduler


def fill(pool: BlockPool) -> None:
    """Every block has content that can be found, and none is held."""
    table = [pool.take() for _ in range(pool.free)]
    for block in table:
        pool.publish(block, block.to_bytes(16, "little"))
    pool.release(table)


def cost_of_steps(scheduler: Scheduler) -> int:
    return count_instructions(partial(steps, scheduler))


def test_a_step_costs_in_proportion_to_its_rows() -> None:
    few, many = cost_of_steps(decoding(FEW)), cost_of_steps(decoding(MANY))
    assert many < few * MANY / FEW
    assert many < 600 * BLOCK * MANY


def test_it_does_so_up_to_thousands_of_rows_and_a_million_blocks() -> None:
    many = cost_of_steps(decoding(4096, blocks=1_000_000))
    assert many < cost_of_steps(decoding(256)) * 4096 / 256


def test_a_step_costs_the_same_however_large_the_pool() -> None:
    small = cost_of_steps(decoding(FEW, blocks=8 * FEW))
    assert cost_of_steps(decoding(FEW, blocks=100 * 8 * FEW)) == small


def cost_of_replacing(waiting: int) -> int:
    """One leaves, and the first of those that wait takes its row."""
    scheduler = decoding(FEW, waiting=waiting)

    def replace() -> None:
        scheduler.abort("5")
        steps(scheduler)

    cost = count_instructions(replace)
    assert scheduler.num_waiting == waiting - 1
    return cost


def test_a_step_costs_the_same_however_many_wait() -> None:
    assert cost_of_replacing(2) == cost_of_replacing(MANY)


def cost_of_following(followers: int) -> int:
    """Requests with rows to have that wait for a long prompt, all of which is under way."""
    config = SchedulerConfig(4096, BLOCK, max_num_batched_tokens=4096, max_num_queued_reqs=MANY)
    scheduler = Scheduler(config, Capacity(2048, BLOCK))
    for number in range(1 + followers):
        scheduler.add(request(str(number), list(range(2048)), 8), 0.0)
    scheduler.schedule(0.0)
    cost = count_instructions(partial(scheduler.schedule, 0.0))
    assert scheduler.num_waiting == followers
    return cost


def test_one_that_waits_for_a_prefix_costs_a_glance() -> None:
    few, many = cost_of_following(1), cost_of_following(201)
    assert (many - few) / 200 < 100


def test_taking_one_out_costs_the_same_however_many_run() -> None:
    def leave(scheduler: Scheduler) -> None:
        scheduler.abort("20")
        scheduler._preemption.make_room(0)

    few, many = (count_instructions(partial(leave, decoding(size))) for size in (FEW, MANY))
    assert many < 1.5 * few


def cost_of_seating(samples: int) -> int:
    """Samples of one prompt that were preempted, and come back."""
    sim = Simulation(2048, max_num_seqs=64, max_num_batched_tokens=512)
    sim.add(request("r", list(range(60)) * 4, 8, n=samples, temperature=1.0))
    sim.step()
    sim.step()
    sim.preempt("r")
    (group,) = sim.scheduler.groups
    return count_instructions(partial(sim.scheduler.cache.find_seats, group))


def test_samples_are_seated_at_a_cost_in_proportion_to_their_number() -> None:
    assert cost_of_seating(64) < 4.2 * cost_of_seating(16)


def test_a_step_leaves_the_garbage_collector_nothing_but_the_blocks_that_it_began() -> None:
    scheduler = decoding(MANY)
    gc.disable()
    try:
        before = len(gc.get_objects())
        plan = scheduler.schedule(0.0)
        assert plan is not None
        events = scheduler.update(StepResult(plan.step, [7] * len(plan.work)), 0.0)
        added = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert len(events) == MANY
    assert added < MANY / BLOCK + 50  # each block is in a list


def test_what_ended_is_gone_without_a_garbage_collection() -> None:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        sim = Simulation(60, num_host_blocks=20)
        kinds: dict[str, dict[str, Any]] = {
            "one": {},
            "samples": {"n": 3},
            "beams": {"beam_width": 3},
        }
        for name, more in kinds.items():
            sim.add(request(name, list(range(9)), 12, salt=name, **more))
            sim.add(request(f"aborted {name}", list(range(9)), 12, salt=name, **more))
        for _ in range(5):
            sim.step()
        sim.preempt("one")
        for name in kinds:
            sim.scheduler.abort(f"aborted {name}")
        sim.run()
        assert len(sim.scheduler.take_ended()) == 6
        gc.collect()
        left = [type(each) for each in gc.garbage if isinstance(each, (Group, Sequence))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
