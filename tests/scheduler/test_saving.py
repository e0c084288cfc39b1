"""Preempted requests on the host: what is copied, what is pinned, and what room it takes."""

from __future__ import annotations

import pytest

from octavo.scheduler.checks import check
from octavo.scheduler.plan import StepPlan
from tests.scheduler.hosting import hosting, names_of, store_all
from tests.scheduler.simulation import Simulation, request


class TestSaving:
    def swap(self, sim: Simulation, name: str = "r") -> StepPlan:
        """Preempts a request, and makes the plan that copies it out."""
        assert sim.preempt(name).outcome == "swap"
        plan = sim.plan()
        assert plan is not None
        return plan

    @pytest.mark.parametrize(("written_behind", "left"), [(0, 9), (8, 1)])
    def test_only_what_was_not_written_behind_is_copied(
        self, written_behind: int, left: int
    ) -> None:
        sim = hosting(write_behind_blocks=written_behind)
        sim.add(request("r", list(range(33)), 9))
        for _ in range(3):
            sim.step()
        plan = self.swap(sim)
        assert len(plan.swap_out) == left
        sim.receive()
        sim.run()
        sim.check_answers()
        sim.check_empty()
        assert sim.scheduler.counters.swapped_out == left

    def test_only_what_is_full_and_confirmed_gets_a_name(self) -> None:
        sim = hosting(max_num_batched_tokens=6, write_behind_blocks=0)
        prompt = list(range(18))
        sim.add(request("r", prompt, 9))
        sim.step()
        sim.plan()  # not confirmed: 12 tokens are granted, 6 of them computed
        plan = self.swap(sim)
        assert len(plan.swap_out) == 3
        host = sim.scheduler.cache.host
        assert [host.find(name) is not None for name in names_of(prompt)] == [True] + [False] * 3
        sim.receive()
        sim.receive()
        sim.run()
        sim.check_published()
        sim.check_answers()

    def test_a_swapped_request_comes_back_without_computing_anything_again(self) -> None:
        sim = hosting()
        sim.add(request("r", list(range(33)), 9))
        for _ in range(3):
            sim.step()
        sim.preempt("r")
        sim.scheduler.cache.pool.reset()
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 35 and len(plan.swap_in) == 9
        assert [(work.start, work.count) for work in plan.work] == [(35, 1)]
        sim.receive()
        sim.run()
        sim.check_answers()
        assert sim.scheduler.counters.computed == 33 + 8

    def test_a_partial_block_is_its_own_though_the_device_has_it_filled(self) -> None:
        """It is to be written, which a block that others may find is not."""
        sim = hosting(max_num_batched_tokens=6, max_num_seqs=1, write_behind_blocks=0)
        prompt = list(range(18))
        sim.add(request("r", prompt, 9, priority=1))
        sim.step()
        assert sim.preempt("r").outcome == "swap"
        sim.add(request("same", prompt, 1))
        sim.plan()
        assert not sim.scheduler.awaits_result  # it brings its own, and waits for nobody
        sim.step_until(lambda: "same" in sim.finished)
        filled = sim.scheduler.cache.pool.find(names_of(prompt)[1])
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 6 and filled is not None
        assert len(plan.swap_in) == 1 and plan.add[0].blocks[1] != filled
        sim.receive()
        sim.run()
        sim.check_answers()

    def test_what_is_still_on_the_device_is_not_copied_back(self) -> None:
        sim = hosting()
        sim.add(request("r", list(range(33)), 9))
        for _ in range(3):
            sim.step()
        plan = self.swap(sim)
        assert len(plan.swap_in) == 1  # the partial tail, which has no name

    def test_siblings_that_share_a_partial_block_come_back_sharing_it(self) -> None:
        sim = hosting()
        sim.add(request("r", list(range(6)), 9, n=3, temperature=1.0))
        sim.step()
        plan = self.swap(sim)
        assert len(plan.swap_out) == 2
        assert plan.work == []  # each has to have it for itself before it writes
        assert len({add.blocks[1] for add in plan.add}) == 1
        sim.receive()
        following = sim.plan()
        assert following is not None and len(following.copy) == 2 and len(following.work) == 3
        sim.receive()
        sim.run()
        sim.check_answers()

    def test_a_block_that_siblings_share_is_copied_once_and_pinned_for_each(self) -> None:
        sim = hosting(7, write_behind_blocks=0)
        sim.add(request("r", list(range(16)), 9, n=3, temperature=1.0))
        sim.step()
        sim.step()
        cache = sim.scheduler.cache
        group = sim.scheduler.roster.live["r"]
        assert cache.tier.unsaved_blocks(group) == (7, 7)
        assert sim.preempt("r").outcome == "swap"
        assert cache.host.used == 7 and sorted(cache.host.pins) == [1, 1, 1, 3, 3, 3, 3]
        assert [seq.saved for seq in group.sequences] == [17] * 3
        plan = sim.plan()
        assert plan is not None
        assert len(plan.swap_out) == 7 == len({source for source, _ in plan.swap_out})
        sim.receive()
        sim.run()
        sim.check_answers()
        sim.check_empty()

    @pytest.mark.parametrize("room", [6, 7])
    def test_room_is_counted_by_blocks_and_not_by_tables(self, room: int) -> None:
        sim = hosting(room, write_behind_blocks=0)
        sim.add(request("r", list(range(16)), 9, n=3, temperature=1.0))
        sim.step()
        sim.step()
        decision = sim.preempt("r")
        assert decision.outcome == ("swap" if room == 7 else "no host room")
        assert (sim.scheduler.cache.host.used > 0) == (room == 7)
        sim.run()
        sim.check_answers()
        sim.check_empty()

    @pytest.mark.parametrize("total", [6, 7])
    def test_what_is_there_already_is_pinned_and_not_counted_as_room(self, total: int) -> None:
        """Four of seven blocks are on the host, where they are all that could be given up."""
        sim = hosting(total, write_behind_blocks=8)
        sim.add(request("r", list(range(16)), 9, n=3, temperature=1.0))
        for _ in range(3):
            sim.step()
        host = sim.scheduler.cache.host
        host.settle()
        assert host.cached == 4 and host.room == total
        assert sim.preempt("r").outcome == ("swap" if total == 7 else "no host room")
        assert host.used == (7 if total == 7 else 0)
        check(sim.scheduler)
        plan = sim.plan()
        assert plan is not None and len(plan.swap_out) == (3 if total == 7 else 0)
        sim.receive()
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_what_is_there_is_not_given_up_for_the_rest(self) -> None:
        """The oldest blocks of the host are those that the request has there itself."""
        sim = hosting(6, write_behind_blocks=8)
        sim.add(request("r", list(range(8)), 20))
        sim.step()
        sim.step()
        sim.add(request("other", [50] * 16, 9))
        sim.step()
        sim.step()
        group, host = sim.scheduler.roster.live["r"], sim.scheduler.cache.host
        host.settle()
        assert (host.room, host.cached) == (6, 6)
        assert sim.scheduler.cache.tier.unsaved_blocks(group) == (1, 3)
        assert sim.preempt("r").outcome == "swap"
        (seq,) = group.sequences
        assert seq.host_table[:2] == [host.find(name) for name in names_of(list(range(8)))]
        assert len(set(seq.host_table)) == 3
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_a_host_that_is_full_of_cached_blocks_gives_them_up(self) -> None:
        sim = hosting(8, write_behind_blocks=8)
        store_all(sim, list(range(32)), "old", 4)
        assert sim.scheduler.cache.host.cached == 8
        sim.add(request("r", [50] * 14, 9))
        sim.step()
        assert sim.preempt("r").outcome == "swap"
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_without_room_it_is_computed_again_and_counted(self) -> None:
        sim = hosting(2, write_behind_blocks=0)
        sim.add(request("r", list(range(14)), 9))
        sim.step()
        assert sim.preempt("r").outcome == "no host room"
        counters = sim.scheduler.counters
        assert (counters.preemptions, counters.preemptions_swap) == (1, 0)
        assert counters.swap_fallbacks == 1
        sim.scheduler.reset_prefix_cache()
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 0 and plan.swap_out == []
        sim.receive()
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_a_swapped_request_is_not_given_up_for_what_is_only_cached(self) -> None:
        sim = hosting(5, num_blocks=12, write_behind_blocks=8, max_num_seqs=1)
        sim.add(request("swapped", list(range(14)), 20, priority=1))
        sim.step()
        sim.step()
        assert sim.preempt("swapped").outcome == "swap"
        sim.add(request("urgent", [50] * 33, 6))
        sim.run()
        assert list(sim.finished) == ["urgent", "swapped"]
        sim.check_answers()
        sim.check_empty()
        assert sim.scheduler.counters.computed == 14 + 19 + 33 + 5

    def test_an_abort_lets_a_swapped_request_go(self) -> None:
        sim = hosting()
        sim.add(request("r", list(range(14)), 9))
        sim.step()
        sim.preempt("r")
        assert sim.scheduler.cache.host.used == 4
        sim.scheduler.abort("r")
        check(sim.scheduler)
        sim.check_empty()

    def test_a_prompt_that_is_being_scored_is_computed_again(self) -> None:
        """Its entries must come from one computation; swapping would lose those to come."""
        sim = hosting(max_num_batched_tokens=8)
        sim.add(request("r", list(range(14)), 4, prompt_logprobs=0))
        sim.step()
        assert sim.preempt("r").outcome == "recompute"
        plan = sim.plan()
        assert plan is not None and plan.add[0].computed == 0
