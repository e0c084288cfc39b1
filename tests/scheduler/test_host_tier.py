"""What is written behind, and what it is good for afterwards."""

from __future__ import annotations

from octavo.scheduler.host_tier import LOOKS
from tests.scheduler.hosting import hosting, names_of, store_all
from tests.scheduler.simulation import Simulation, request


def stores(sim: Simulation, steps: int) -> list[int]:
    """How many blocks each of the next plans writes behind."""
    counts = []
    for _ in range(steps):
        plan = sim.plan()
        assert plan is not None
        counts.append(len(plan.store))
        sim.receive()
        sim.check_published()
    return counts


def overwrite(sim: Simulation) -> None:
    """Runs a request that takes every device block."""
    tokens = sim.scheduler.capacity.tokens
    sim.add(request("overwriter", [63] * (tokens - 1), 1, salt="other"))
    sim.run()


class TestWriteBehind:
    def test_it_keeps_to_its_budget_until_all_is_stored(self) -> None:
        sim = hosting(write_behind_blocks=3)
        sim.add(request("r", list(range(32)), 7))
        assert stores(sim, 5) == [0, 3, 3, 2, 0]
        assert sim.scheduler.counters.stored == 8

    def test_the_oldest_go_first_and_hold_what_their_names_say(self) -> None:
        sim = hosting(write_behind_blocks=3)
        sim.add(request("r", list(range(32)), 7))
        stores(sim, 1)
        table = sim.running[0].table[:]
        plan = sim.plan()
        assert plan is not None and [source for source, _ in plan.store] == table[:3].tolist()
        host = sim.scheduler.cache.host
        names = sim.running[0].hashes(4)
        assert [host.find(name) for name in names[:3]] == [target for _, target in plan.store]

    def test_it_hurries_while_few_blocks_are_free(self) -> None:
        sim = hosting(write_behind_blocks=1, watermark_low=0.9, watermark_high=0.9)
        sim.add(request("r", list(range(32)), 7))
        assert stores(sim, 4) == [0, 4, 4, 0]

    def test_it_waits_while_blocks_that_hold_nothing_are_plenty(self) -> None:
        sim = hosting(num_blocks=41, write_behind_blocks=1, write_behind_below=0.75)
        sim.add(request("small", list(range(32)), 4))
        assert stores(sim, 4) == [0] * 4  # 31 of 40 hold nothing
        sim.add(request("more", [50] * 8, 3))
        assert stores(sim, 2) == [1, 1]

    def test_it_can_be_turned_off(self) -> None:
        sim = hosting(write_behind_blocks=0)
        sim.add(request("r", list(range(32)), 5))
        assert stores(sim, 5) == [0] * 5

    def test_nothing_is_stored_without_a_host(self) -> None:
        sim = hosting(0, write_behind_blocks=3)
        sim.add(request("r", list(range(32)), 5))
        assert stores(sim, 5) == [0] * 5
        assert not sim.scheduler.cache.tier._unstored

    def test_nothing_is_stored_or_found_before_the_step_that_wrote_it_is_back(self) -> None:
        sim = hosting(depth=3)
        sim.add(request("r", list(range(8)), 9))
        for _ in range(3):
            plan = sim.plan()
            assert plan is not None and plan.store == []
        assert sim.scheduler.cache.pool.find(names_of(list(range(8)))[0]) is None
        sim.receive()
        plan = sim.plan()
        assert plan is not None and len(plan.store) == 2

    def test_what_the_host_has_already_is_skipped_and_costs_nothing(self) -> None:
        sim = hosting(write_behind_blocks=2)
        prompt = list(range(16))
        store_all(sim, prompt)
        sim.scheduler.cache.pool.reset()
        # Computed anew because its prompt is scored, and followed by something new.
        sim.add(request("again", [*prompt, *range(40, 48)], 4, prompt_logprobs=0))
        assert stores(sim, 4) == [0, 2, 0, 0]

    def test_what_was_overwritten_meanwhile_is_skipped(self) -> None:
        sim = hosting(num_blocks=9, write_behind_blocks=8)
        sim.add(request("first", list(range(24)), 1))
        sim.run()  # 6 blocks are published, and no step follows
        second = [50] * 28
        sim.add(request("second", second, 4))
        assert stores(sim, 2) == [1, 7]  # the head of the first is the last to be taken
        host = sim.scheduler.cache.host
        found = [host.find(name) is not None for name in names_of(list(range(24)))]
        assert found == [True] + [False] * 5
        assert all(host.find(name) is not None for name in names_of(second))

    def test_of_many_that_were_overwritten_few_are_looked_at_in_a_step(self) -> None:
        sim = hosting(num_blocks=200, write_behind_blocks=0)
        tier = sim.scheduler.cache.tier
        for _ in range(2):
            overwrite(sim)
            sim.scheduler.cache.pool.reset()
        assert len(tier._unstored) == 200  # more were published than there are
        tier.write_behind(2)
        assert len(tier._unstored) == 200 - 2 * LOOKS and tier.moves.store == []

    def test_what_finds_no_room_is_stored_once_there_is_some(self) -> None:
        sim = hosting(4, max_num_seqs=1)
        sim.add(request("swapped", list(range(14)), 9, priority=1))
        sim.step()
        assert sim.preempt("swapped").outcome == "swap"
        sim.add(request("urgent", [50] * 16, 6))
        assert stores(sim, 3) == [0, 0, 0]
        sim.scheduler.abort("swapped")
        assert stores(sim, 1) == [4]

    def test_the_host_gives_up_the_least_recently_used(self) -> None:
        sim = hosting(6, write_behind_blocks=8)
        one, two, three, four = ([token] * 9 for token in range(4))
        for prompt in (one, two, three):
            store_all(sim, prompt, str(prompt[0]), 3)
        sim.scheduler.cache.pool.reset()
        store_all(sim, one, "again", 3)  # served from the host
        assert sim.scheduler.counters.host_prefix_hits == 8
        store_all(sim, four, "new", 3)
        there = {
            prompt[0]: sum(
                sim.scheduler.cache.host.find(name) is not None for name in names_of(prompt)
            )
            for prompt in (one, two, three, four)
        }
        assert there == {0: 2, 1: 0, 2: 2, 3: 2}


class TestPrefixHits:
    def test_what_the_device_lost_is_brought_back_from_the_host(self) -> None:
        sim = hosting(num_blocks=9)
        prompt = list(range(18))
        store_all(sim, prompt)
        overwrite(sim)
        sim.add(request("again", prompt, 3))
        plan = sim.plan()
        assert plan is not None
        (born,) = plan.add
        assert born.computed == 16 and [target for _, target in plan.swap_in] == born.blocks[:4]
        assert sim.scheduler.counters.host_prefix_hits == 16
        assert sim.scheduler.counters.swapped_in == 4
        sim.receive()
        sim.run()
        sim.check_answers()
        assert sim.events[-1].cached_tokens == 16
        assert sim.scheduler.cache.host.used == 0

    def test_the_device_is_asked_first_and_the_tiers_complete_each_other(self) -> None:
        sim = hosting(num_blocks=12)
        prompt = list(range(18))
        store_all(sim, prompt)
        sim.add(request("half", [60] * 30, 1))  # takes the tail of what is there
        sim.run()
        sim.add(request("again", prompt, 3))
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 16
        assert len(plan.swap_in) == 1
        assert sim.scheduler.counters.host_prefix_hits == 4
        assert sim.scheduler.counters.prefix_hits == 16
        sim.receive()
        sim.run()
        sim.check_answers()

    def test_the_last_token_is_computed_even_where_the_host_has_it(self) -> None:
        sim = hosting(num_blocks=9)
        prompt = list(range(16))
        store_all(sim, prompt)
        overwrite(sim)
        sim.add(request("again", prompt, 3))
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 12 and len(plan.swap_in) == 3

    def test_what_was_brought_back_can_be_found_by_others_once_it_is_confirmed(self) -> None:
        sim = hosting(num_blocks=16)
        prompt = list(range(18))
        store_all(sim, prompt)
        overwrite(sim)
        for name in ("one", "two"):
            sim.add(request(name, prompt, 3))
        plan = sim.plan()
        assert plan is not None and len(plan.add) == 1  # the other waits for it
        sim.receive()
        plan = sim.plan()
        assert plan is not None and plan.swap_in == []
        assert plan.add[0].computed == 16
        sim.receive()
        sim.run()
        sim.check_answers()
        assert sim.scheduler.counters.host_prefix_hits == 16

    def test_blocks_to_load_into_are_counted_before_a_request_is_let_in(self) -> None:
        sim = hosting(num_blocks=9)
        prompt = list(range(18))
        store_all(sim, prompt)
        overwrite(sim)
        sim.add(request("running", [50] * 13, 2), request("again", prompt, 2))
        plan = sim.plan()
        assert plan is not None and len(plan.add) == 1  # 4 and 5 are more than 8
        sim.receive()
        sim.run()
        sim.check_answers()
