"""Who gives way when blocks run out, and how: computed again, or copied out and back.

The cheaper of the two by measured rates, in seconds of the workers' time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.scheduler.config import PreemptionMode
from octavo.scheduler.counters import Counters
from octavo.scheduler.group import Group
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.rates import Rates
from octavo.scheduler.roster import Roster

SPARED_AFTER = 3  # preemptions, after which others are preempted first
Outcome = Literal["recompute", "swap", "no host room"]


@dataclass(slots=True, frozen=True)
class Decision:
    """One preemption, for people: why, and what came of it. Times are estimates in seconds."""

    request_id: str
    recompute_seconds: float
    swap_seconds: float
    outcome: Outcome  # no host room: swapping was cheaper, or asked for, and could not be done
    whom: str = ""  # the request that needed the blocks


class Preemption:
    """Takes memory from running requests. `decisions` fill up until somebody takes them."""

    def __init__(
        self,
        mode: PreemptionMode,
        cache: KvCache,
        roster: Roster,
        rates: Rates,
        counters: Counters,
    ) -> None:
        self.decisions: list[Decision] = []
        self._mode = mode
        self._cache = cache
        self._roster = roster
        self._rates = rates
        self._counters = counters

    def make_room(self, at: int) -> None:
        """Preempts one request for the sake of the running one at `at`: the most recently admitted
        of the lowest priority behind it that gives a block back, and itself where none does. Those
        that were preempted often are spared while there are others."""
        running = self._roster.running
        own, spared = running[at], None
        for place in range(len(running) - 1, at, -1):
            group = running[place]
            if self._cache.gives_back(group):
                if group.preemptions < SPARED_AFTER:
                    return self._preempt(group, own.id)
                spared = spared or group
        self._preempt(own if spared is None or own.preemptions < SPARED_AFTER else spared, own.id)

    def _preempt(self, group: Group, whom: str = "") -> None:
        """What a request published stays findable in any case, for as long as nobody needs the
        room."""
        outcome = self._save(group, whom)
        self._counters.preemptions += 1
        self._counters.preemptions_swap += outcome == "swap"
        self._counters.swap_fallbacks += outcome == "no host room"
        group.preemptions += 1
        self._roster.restart(group)

    def _save(self, group: Group, whom: str) -> Outcome:
        tier, rates = self._cache.tier, self._rates
        lacking, total = tier.unsaved_blocks(group)
        recompute = rates.recompute(lacking * self._cache.block_size)
        recompute += rates.swap(0, total - lacking)
        swap = rates.swap(lacking, total)
        outcome: Outcome = "recompute"
        cheaper = tier.host.total > 0 and swap < recompute
        wanted = self._mode == "swap" or (self._mode == "auto" and cheaper)
        if wanted and tier.can_save(group):
            outcome = "swap" if tier.save(group) else "no host room"
        self.decisions.append(Decision(group.id, recompute, swap, outcome, whom))
        return outcome
