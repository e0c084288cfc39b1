"""What came of a simulation: every request's times, and what steps had in them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.scheduler.counters import Counters
from octavo.scheduler.group import Group
from octavo.scheduler.introspection import MemoryUse

Numbers = npt.NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.99)


class Spread(msgspec.Struct, frozen=True):
    """Of one figure over all requests."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: Numbers) -> Spread:
        if not values.size:
            return cls()
        places = [math.ceil(share * values.size) - 1 for share in QUANTILES]
        parted = np.partition(values, places)
        return cls(float(values.mean()), *(float(parted[place]) for place in places))


class MemoryShares(msgspec.Struct, frozen=True):
    """Of all slots for keys and values, in percent, as figure 2 of the PagedAttention paper has
    them: means over steps in which requests waited."""

    tokens: float
    reserved: float
    wasted: float
    free: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, tokens, requests. `normalized_latency` is a request's seconds from its arrival to
    its end over the tokens of its answer, the paper's measure; `running` and `waiting` are means
    over time, of requests on all replicas together. Imbalance is the most loaded replica's share
    over the mean, `goodput` the share of requests that kept to all bounds."""

    requests: int
    refused: int
    seconds: float
    request_throughput: float
    output_throughput: float
    total_throughput: float
    ttft: Spread
    tpot: Spread
    e2e: Spread
    normalized_latency: Spread
    queue_time: Spread
    running: float
    waiting: float
    steps: int
    step_seconds: float
    preemptions: int
    preemptions_per_request: float
    preempted_requests: int
    swapped_preemptions: int
    blocks_swapped_out: int
    blocks_swapped_in: int
    prefix_hit_rate: float
    computed_tokens: int
    imbalance_tokens: float = 1.0
    imbalance_requests: float = 1.0
    goodput: float | None = None
    memory: MemoryShares | None = None


class Record:
    """Fills while a simulation runs. All numbers lie side by side: there may be ten million
    requests. A `grain` above 1 is how many tokens one stands for."""

    def __init__(self, grain: int = 1) -> None:
        self.refused = 0
        self.answers = array("i")
        self.prompts = array("i")
        self.ttft = array("d")
        self.e2e = array("d")
        self.queue = array("d")
        self.preemptions = array("H")
        self.generated = 0  # tokens, of all samples
        self.normalized = 0.0  # sum over those that ended
        self.queued = 0  # requests that waited when the last step began
        self.last = 0.0  # when the last request ended
        self._grain = grain
        self._steps = 0
        self._step_seconds = 0.0
        self._running = 0.0
        self._waiting = 0.0
        self._memory: list[MemoryUse] = []

    def step(self, seconds: float, running: int, waiting: int) -> None:
        """A step of one replica."""
        self.queued = waiting
        self._steps += 1
        self._step_seconds += seconds
        self._running += seconds * running
        self._waiting += seconds * waiting

    def memory(self, use: MemoryUse) -> None:
        self._memory.append(use)

    def end(self, group: Group, now: float) -> None:
        """A request got its last token."""
        assert group.first_token_at is not None and group.admitted_at is not None
        arrived = group.request.arrived
        answer = max(1, group.request.sampling.max_tokens or 1) * self._grain
        self.answers.append(answer)
        self.generated += group.generated * self._grain
        self.prompts.append(group.prompt_len * self._grain)
        self.ttft.append(group.first_token_at - arrived)
        self.e2e.append(now - arrived)
        self.queue.append(group.admitted_at - arrived)
        self.preemptions.append(group.preemptions)
        self.normalized += (now - arrived) / answer
        self.last = max(self.last, now)

    def summary(
        self,
        counters: Sequence[Counters],
        taken: Sequence[int],
        slots: int = 0,
        slo: dict[str, float] | None = None,
    ) -> Summary:
        """`counters` and requests `taken` are those of each replica, `slots` those of one replica's
        pool. A request is good where each of its figures that `slo` names (ttft, tpot, e2el, in
        seconds) is at most what that says."""
        ended, seconds = len(self.e2e), max(self.last, 1e-9)
        prompts = sum(self.prompts)
        first, whole = np.array(self.ttft), np.array(self.e2e)
        answers, more = np.array(self.answers), np.array(self.answers) - self._grain
        preempted = int(np.count_nonzero(self.preemptions))
        preemptions = sum(self.preemptions)
        queries = sum(each.prefix_queries for each in counters)
        return Summary(
            requests=ended,
            refused=self.refused,
            seconds=seconds,
            request_throughput=ended / seconds,
            output_throughput=self.generated / seconds,
            total_throughput=(self.generated + prompts) / seconds,
            ttft=Spread.of(first),
            tpot=Spread.of((whole - first)[more > 0] / more[more > 0]),
            e2e=Spread.of(whole),
            normalized_latency=Spread.of(whole / answers),
            queue_time=Spread.of(np.array(self.queue)),
            running=self._running / seconds,
            waiting=self._waiting / seconds,
            steps=self._steps,
            step_seconds=self._step_seconds / max(1, self._steps) / self._grain,
            preemptions=preemptions,
            preemptions_per_request=preemptions / max(1, ended),
            preempted_requests=preempted,
            swapped_preemptions=sum(each.preemptions_swap for each in counters),
            blocks_swapped_out=sum(each.swapped_out for each in counters),
            blocks_swapped_in=sum(each.swapped_in for each in counters),
            prefix_hit_rate=sum(each.prefix_hits for each in counters) / max(1, queries),
            computed_tokens=sum(each.computed for each in counters) * self._grain,
            imbalance_tokens=_imbalance([each.computed for each in counters]),
            imbalance_requests=_imbalance(taken),
            goodput=None if slo is None else self._good(slo) / max(1, ended + self.refused),
            memory=self._shares(slots),
        )

    def _good(self, slo: dict[str, float]) -> int:
        bound = {name: slo.get(name, math.inf) for name in ("ttft", "e2el")}
        first, whole = np.array(self.ttft), np.array(self.e2e)
        more = np.maximum(0, np.array(self.answers) - self._grain)
        good = (first <= bound["ttft"]) & (whole <= bound["e2el"])
        if "tpot" in slo:
            good &= whole - first <= slo["tpot"] * more
        return int(np.count_nonzero(good))

    def _shares(self, slots: int) -> MemoryShares | None:
        if not self._memory or not slots:
            return None
        scale = 100 / slots / len(self._memory)
        tokens = scale * sum(use.token_slots for use in self._memory)
        reserved = scale * sum(use.reserved_slots for use in self._memory)
        wasted = scale * sum(use.wasted_slots for use in self._memory)
        return MemoryShares(tokens, reserved, wasted, 100 - tokens - reserved - wasted)


def _imbalance(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / max(1, sum(loads))
