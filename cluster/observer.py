"""Turns what the scheduler and the workers did into the figures that people watch.

Keeps one small timeline a live request; everything else is a running total (`cluster/stats.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.cluster.first_tokens import FirstTokens
from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.events import StepEvents
from octavo.scheduler.group import Group
from octavo.scheduler.introspection import describe_queue
from octavo.scheduler.request import Finish
from octavo.scheduler.scheduler import Scheduler

BLOCK_EVENTS = 1024  # that may pile up before


class Observer:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ages = scheduler.cache.pool.ages
        self._measured = Measured()
        self._first = FirstTokens()
        self._last_token: dict[tuple[str, int], float] = {}
        self._computed = 0
        self._steps = 0

    def arrived(self, request_id: str, now: float) -> None:
        """A request was queued."""
        self._first.arrived(request_id, now)

    def record(self, events: StepEvents, now: float) -> None:
        """Takes in one step: its events, then the requests that it ended."""
        self._steps += 1
        measured, last_token = self._measured, self._last_token
        measured.generation_tokens += len(events.names)
        for name in events.names:  # these had a token before
            sample = name, 0
            if sample in last_token:
                measured.inter_token_latency.observe(now - last_token[sample])
            last_token[sample] = now
        for event in events.others:
            name = event.request_id
            if not event.tokens:
                continue
            measured.generation_tokens += len(event.tokens)
            if (waited := self._first.came(name, now)) is not None:
                measured.time_to_first_token.observe(waited)
            sample = name, event.index
            if sample in last_token:
                measured.inter_token_latency.observe(now - last_token[sample])
            last_token[sample] = now
            if event.finish is not None:
                del last_token[sample]
        computed = self._scheduler.counters.computed
        measured.iteration_tokens.observe(computed - self._computed)
        self._computed = computed
        if len(self._ages.evicted) + len(self._ages.reused) > BLOCK_EVENTS:
            self._observe_blocks()
        self.take_ended(now)

    def take_ended(self, now: float) -> None:
        """Observes the requests that ended since the last call."""
        for group in self._scheduler.take_ended():
            name = group.request.id
            for index in range(group.request.sampling.n):
                self._last_token.pop((name, index), None)
            self._first.gone(name)
            self._observe_end(group, now)

    def _observe_end(self, group: Group, now: float) -> None:
        measured = self._measured
        reason = group.finish or Finish.ABORT
        measured.finished[reason] = measured.finished.get(reason, 0) + 1
        if group.admitted_at is None:
            return
        measured.request_prompt_tokens.observe(group.prompt_len)
        measured.request_generation_tokens.observe(group.generated)
        measured.request_preemptions.observe(group.preemptions)
        measured.request_longest.observe(group.longest)
        if group.request.sampling.max_tokens is not None:
            measured.request_max_tokens.observe(group.request.sampling.max_tokens)
        measured.request_samples.observe(group.request.sampling.n)
        measured.queue_time.observe(group.admitted_at - group.arrived)
        measured.inference_time.observe(now - group.admitted_at)
        measured.e2e_latency.observe(now - group.arrived)
        if group.first_token_at is None:
            return
        measured.prefill_time.observe(group.first_token_at - group.admitted_at)
        measured.decode_time.observe(now - group.first_token_at)
        samples = group.request.sampling.n
        if group.generated > samples:  # samples run side by side
            per_token = (now - group.first_token_at) / (group.generated / samples - 1)
            measured.time_per_output_token.observe(per_token)

    def _observe_blocks(self) -> None:
        measured = self._measured
        evictions, gaps = self._ages.take()
        for each in evictions:
            measured.block_lifetime.observe(each.lifetime)
            measured.block_idle.observe(each.idle)
        for gap in gaps:
            measured.block_reuse_gap.observe(gap)

    def snapshot(
        self, replica: str, fault: str | None, waiting_since: float, now: float
    ) -> EngineStats:
        """The state now, with the totals so far."""
        scheduler, measured = self._scheduler, self._measured
        counters, pool, host = scheduler.counters, scheduler.cache.pool, scheduler.cache.host
        measured.preemptions = counters.preemptions
        measured.preemptions_swap = counters.preemptions_swap
        measured.preemptions_recompute = counters.preemptions - counters.preemptions_swap
        measured.swap_fallbacks = counters.swap_fallbacks
        measured.blocks_swapped_out = counters.swapped_out
        measured.blocks_swapped_in = counters.swapped_in
        measured.blocks_stored = counters.stored
        measured.blocks_copied = counters.copied
        measured.host_prefix_hits = counters.host_prefix_hits
        measured.prefix_cache_queries = counters.prefix_queries
        measured.prefix_cache_hits = counters.prefix_hits
        measured.prompt_tokens = counters.prompt_tokens
        measured.prompt_tokens_computed = counters.prompt_computed
        measured.admission_rejections = counters.rejections
        measured.requests_resumed = counters.resumed
        measured.peak_blocks_used = counters.peak_blocks
        self._observe_blocks()
        recent_ttft, recent_requests = self._first.lately(now)
        queue = describe_queue(scheduler, now)
        adapters = scheduler.config.adapters
        return EngineStats(
            replica=replica,
            capacity=scheduler.capacity,
            max_model_len=scheduler.config.max_model_len,
            max_num_seqs=scheduler.config.max_num_seqs,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            steps=self._steps,
            seconds_since_step=waiting_since,
            fault=fault,
            measured=measured.copy(),
            host_blocks_used=host.used,
            host_blocks_cached=host.cached,
            host_blocks_total=host.total,
            blocks_queued=queue.blocks,
            recent_ttft=recent_ttft,
            recent_requests=recent_requests,
            blocks_shared=pool.shared,
            waiting_deferred=queue.deferred,
            waiting_swapped=queue.swapped,
            queue_age=queue.oldest,
            most_adapters=min(len(adapters), scheduler.config.max_loras or len(adapters)),
            adapters_running=_adapters_of(scheduler.roster.running) if adapters else [],
            adapters_waiting=_adapters_of(scheduler.roster.waiting) if adapters else [],
        )


def _adapters_of(groups: Iterable[Group]) -> list[str]:
    return sorted({group.request.adapter for group in groups} - {""})
