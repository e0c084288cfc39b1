"""Who gives way, how, and when it comes back."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.group import Group
from octavo.scheduler.preemption import Decision
from octavo.scheduler.rates import SWAP_FIXED_SECONDS
from octavo.scheduler.request import Request
from tests.scheduler.simulation import Simulation, request

A_TOKEN, A_BLOCK = 1e-3, 1e-4


def measured(a_token: float = A_TOKEN, a_block: float = A_BLOCK, **options: Any) -> Simulation:
    """A simulation whose rates are these, whatever it measures."""
    settings: dict[str, Any] = {
        "num_host_blocks": 40, "write_behind_blocks": 0, "max_num_batched_tokens": 64,
    } | options  # fmt: skip
    sim = Simulation(**settings)
    sim.fix_rates(a_token, a_block)
    return sim


def names(groups: list[Group]) -> list[str]:
    return [group.request.id for group in groups]


class TestChoice:
    def test_the_estimates_are_of_what_is_lacking_and_what_is_to_be_brought_back(self) -> None:
        sim = measured()
        sim.add(request("r", list(range(18)), 9))
        sim.step()
        assert sim.preempt("r") == Decision(
            "r",
            pytest.approx(5 * 4 * A_TOKEN + SWAP_FIXED_SECONDS),  # type: ignore[arg-type]
            pytest.approx((5 + 5) * A_BLOCK + SWAP_FIXED_SECONDS),  # type: ignore[arg-type]
            "swap",
        )

    def test_what_was_written_behind_need_not_be_computed_or_copied_again(self) -> None:
        sim = measured(write_behind_blocks=8)
        sim.add(request("r", list(range(18)), 9))
        sim.step()
        sim.step()
        decision = sim.preempt("r")
        assert decision.recompute_seconds == pytest.approx(
            4 * A_TOKEN + SWAP_FIXED_SECONDS + 4 * A_BLOCK
        )
        assert decision.swap_seconds == pytest.approx(SWAP_FIXED_SECONDS + (1 + 5) * A_BLOCK)

    @pytest.mark.parametrize(
        ("a_token", "a_block", "outcome"),
        [(1e-3, 1e-4, "swap"), (1e-3, 1e-1, "recompute"), (1e-6, 1e-4, "recompute")],
    )
    def test_auto_takes_the_cheaper(self, a_token: float, a_block: float, outcome: str) -> None:
        sim = measured(a_token, a_block)
        sim.add(request("r", list(range(18)), 9))
        sim.step()
        decision = sim.preempt("r")
        assert decision.outcome == outcome
        assert (decision.swap_seconds < decision.recompute_seconds) == (outcome == "swap")
        sim.run()
        sim.check_answers()
        assert sim.scheduler.counters.preemptions_swap == (outcome == "swap")

    @pytest.mark.parametrize("mode", ["swap", "recompute"])
    @pytest.mark.parametrize(("a_token", "a_block"), [(1e-3, 1e-4), (1e-6, 1e-1)])
    def test_a_mode_is_obeyed_at_any_rates(self, mode: str, a_token: float, a_block: float) -> None:
        sim = measured(a_token, a_block, preemption_mode=mode)
        sim.add(request("r", list(range(18)), 9))
        sim.step()
        assert sim.preempt("r").outcome == mode
        assert (sim.scheduler.cache.host.used > 0) == (mode == "swap")

    @pytest.mark.parametrize(
        ("host", "mode", "outcome", "fallbacks"),
        [
            (2, "auto", "no host room", 1),
            (2, "swap", "no host room", 1),
            (0, "swap", "no host room", 1),
            (0, "auto", "recompute", 0),
            (2, "recompute", "recompute", 0),
        ],
    )
    def test_without_room_it_is_computed_again(
        self, host: int, mode: str, outcome: str, fallbacks: int
    ) -> None:
        sim = measured(num_host_blocks=host, preemption_mode=mode)
        sim.add(request("r", list(range(18)), 9))
        sim.step()
        assert sim.preempt("r").outcome == outcome
        assert sim.scheduler.counters.swap_fallbacks == fallbacks
        assert sim.scheduler.counters.preemptions_swap == 0
        sim.run()
        sim.check_answers()
        sim.check_empty()

    @pytest.mark.parametrize(("host", "outcome"), [(0, "no host room"), (40, "swap")])
    def test_what_has_computed_nothing_needs_no_room_but_a_host(
        self, host: int, outcome: str
    ) -> None:
        sim = measured(num_host_blocks=host, preemption_mode="swap")
        sim.add(request("r", list(range(6)), 5))
        sim.plan()
        sim.flights.clear()
        sim.send(sim.scheduler.resync())
        assert sim.preempt("r").outcome == outcome
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_samples_that_wait_for_a_sibling_are_not_swapped(self) -> None:
        """What they share is granted to all of them, but not there before it is computed."""
        sim = measured(a_block=1.0, max_num_batched_tokens=5)
        sim.add(request("r", list(range(14)), 9, n=3, temperature=1.0))
        sim.step_until(lambda: len(sim.samples["r"][0]) == 2)
        assert sim.preempt("r").outcome == "recompute"
        sim.scheduler.reset_prefix_cache()
        sim.step()
        assert sim.running[1].is_held()
        sim.fix_rates(1.0, A_BLOCK)
        assert sim.preempt("r").outcome == "recompute"
        sim.run()
        sim.check_answers()
        sim.check_empty()

    def test_a_request_that_ends_with_the_step_in_flight_does_not_come_back(self) -> None:
        sim = measured(preemption_mode="swap")
        sim.add(request("r", list(range(6)), 1))
        sim.plan()
        assert sim.preempt("r").outcome == "swap"
        sim.receive()
        sim.check_answers()
        sim.check_empty()

    def test_a_prompt_that_nothing_follows_is_computed_again(self) -> None:
        """Its last token was granted, and would not be computed a second time."""
        sim = measured(preemption_mode="swap")
        sim.add(request("r", list(range(6)), 0))
        sim.plan()
        assert sim.preempt("r").outcome == "recompute"
        sim.receive()
        sim.run()
        sim.check_empty()
        assert list(sim.finished) == ["r"]

    def test_decisions_are_kept_until_taken(self) -> None:
        sim = measured(preemption_mode="recompute")
        sim.add(request("r", [1] * 6, 5), request("s", [2] * 9, 5))
        sim.step()
        sim.preempt("s")
        sim.preempt("r")
        decisions = sim.scheduler.take_decisions()
        assert [decision.request_id for decision in decisions] == ["s", "r"]
        assert sim.scheduler.take_decisions() == []
        assert sim.scheduler.counters.preemptions == 2


def crowded(*requests: Request, **options: Any) -> Simulation:
    """All of these running, and watermarks that hold nobody."""
    sim = measured(watermark_low=0, watermark_high=0, **options)
    for item in requests:
        sim.add(item)
        sim.step()
    assert names(sim.scheduler.roster.running) == [item.id for item in requests]
    return sim


class TestVictims:
    def three(self, **options: Any) -> Simulation:
        return crowded(*(request(name, [ord(name)] * 8, 20) for name in "abc"), **options)

    def test_the_most_recently_admitted_goes_first(self) -> None:
        sim = self.three()
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == ["a", "b"]

    def test_the_lowest_priority_goes_before_the_most_recent(self) -> None:
        sim = crowded(
            request("urgent", [1] * 8, 20, priority=-1), request("normal", [2] * 8, 20),
            request("background", [3] * 8, 20, priority=3),
        )  # fmt: skip
        sim.add(request("recent", [4] * 8, 20))
        sim.step()
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == ["urgent", "normal", "recent"]

    def test_nobody_gives_way_to_one_behind_it(self) -> None:
        sim = self.three()
        sim.scheduler._preemption.make_room(2)
        assert names(sim.scheduler.roster.running) == ["a", "b"]

    def test_one_that_gives_nothing_back_is_passed_over(self) -> None:
        prompt = list(range(16))
        sim = crowded(
            request("a", prompt + [20], 20), request("b", prompt + [21], 20),
            request("c", prompt + [22], 20),
        )  # fmt: skip
        (last,) = sim.scheduler.roster.running[2].sequences
        own = last.table.pop()  # as if it held nothing of its own
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == ["a", "c"]
        last.table.append(own)

    def test_samples_give_back_what_only_they_share(self) -> None:
        sim = crowded(request("a", [1] * 8, 20), request("b", [2] * 8, 20, n=3, temperature=1.0))
        group = sim.scheduler.roster.live["b"]
        assert sim.scheduler.cache.gives_back(group)
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == ["a"]

    @pytest.mark.parametrize("tired", [{"c"}, {"b", "c"}])
    def test_who_was_preempted_often_is_spared_while_there_are_others(
        self, tired: set[str]
    ) -> None:
        sim = self.three()
        for group in sim.scheduler.roster.running:
            group.preemptions = 3 if group.request.id in tired else 2
        sim.scheduler._preemption.make_room(0)
        gone = "b" if "b" not in tired else "a"  # even the one that needs the room
        assert names(sim.scheduler.roster.running) == sorted(set("abc") - {gone})

    def test_where_all_were_preempted_often_the_most_recent_goes(self) -> None:
        sim = self.three()
        for group in sim.scheduler.roster.running:
            group.preemptions = 3
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == ["a", "b"]

    def test_one_alone_gives_way_to_itself(self) -> None:
        sim = crowded(request("a", [1] * 8, 20))
        sim.scheduler.roster.running[0].preemptions = 3
        sim.scheduler._preemption.make_room(0)
        assert names(sim.scheduler.roster.running) == []
        sim.run()
        sim.check_answers()


class TestReturn:
    @pytest.mark.parametrize("mode", ["swap", "recompute"])
    def test_nobody_is_admitted_in_a_step_that_preempted(self, mode: str) -> None:
        sim = crowded(
            request("old", [1] * 8, 16), request("young", [2] * 8, 16), num_blocks=9,
            preemption_mode=mode,
        )  # fmt: skip
        while True:
            before = sim.scheduler.counters.preemptions
            sim.add(request(str(sim.now), [3], 1, priority=-1))
            plan = sim.plan()
            sim.receive()
            assert plan is not None
            if sim.scheduler.counters.preemptions > before:
                assert plan.add == [] and bool(plan.swap_out) == (mode == "swap")
                break
        sim.run()
        sim.check_answers()

    def test_the_preempted_come_back_before_those_who_never_ran(self) -> None:
        sim = crowded(request("r", [1] * 8, 9))
        sim.add(request("new", [2] * 8, 9))
        sim.preempt("r")
        assert [group.request.id for group in sim.scheduler.roster.waiting] == ["r", "new"]

    @pytest.mark.parametrize(("preemptions", "returns"), [(1, True), (2, False), (3, False)])
    @pytest.mark.parametrize("width", [1, 2])
    def test_after_two_preemptions_it_returns_only_with_room_for_all_it_may_become(
        self, preemptions: int, returns: bool, width: int
    ) -> None:
        """Of 12 blocks it may come to need 8 while another holds 5."""
        sim = crowded(request("long", [1] * 17, 3), num_blocks=13)
        tokens = 31 - 8 if width == 1 else 19 - 8
        sim.add(request("r", [2] * 8, tokens, n=width, temperature=1.0))
        sim.step()
        sim.preempt("r")
        sim.scheduler.roster.waiting.remove(group := sim.scheduler.roster.live["r"])
        group.preemptions = preemptions
        sim.scheduler.roster.waiting.push(group)
        plan = sim.plan()
        assert plan is not None and bool(plan.add) == returns
        sim.receive()
        sim.run()
        sim.check_answers()
        assert sim.scheduler.roster.ended[-1].preemptions == preemptions

    def test_a_twice_preempted_request_that_was_not_forked_counts_all_its_samples(self) -> None:
        sim = crowded(request("long", [1] * 17, 3), num_blocks=13)
        item = request("r", [2] * 8, 11, n=2, temperature=1.0)  # 2 blocks and 3 for each
        sim.add(item)
        group = sim.scheduler.roster.live["r"]
        sim.scheduler.roster.waiting.remove(group)
        group.preemptions = 2
        sim.scheduler.roster.waiting.push(group)
        plan = sim.plan()
        assert plan is not None and plan.add == []
        sim.receive()
        sim.run()
        sim.check_answers()

    @pytest.mark.parametrize(("low", "returns"), [(0.4, True), (0.5, False)])
    def test_watermarks_hold_those_who_return_too(self, low: float, returns: bool) -> None:
        """Of 10 blocks one runs in 3, and the other needs 3."""
        sim = measured(num_blocks=11, watermark_low=low, watermark_high=low)
        sim.add(request("a", [1] * 8, 4), request("b", [2] * 8, 4))
        sim.step()
        sim.preempt("b")
        plan = sim.plan()
        assert plan is not None and bool(plan.add) == returns
        sim.receive()
        sim.run()
        sim.check_answers()

    @pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
    @pytest.mark.parametrize("host", [0, 6, 40])
    def test_outputs_do_not_depend_on_pressure(self, mode: str, host: int) -> None:
        items = [
            request(f"r{i}", [i] * (4 + i), 14, n=1 + i % 4, temperature=float(i % 2), seed=i)
            for i in range(8)
        ]
        sim = Simulation(26, num_host_blocks=host, preemption_mode=mode, depth=2)
        sim.add(*items)
        sim.run()
        sim.check_answers()
        sim.check_empty()
        counters = sim.scheduler.counters
        assert 0 < counters.preemptions <= 3 * len(items)
        assert (counters.preemptions_swap > 0) == (mode == "swap" and host > 0) or mode == "auto"
