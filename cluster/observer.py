"""Turns what the scheduler and the workers did into the figures that people watch.

Keeps one small timeline a live request; everything else is a running total (`cluster/stats.py`).
"""

from __future__ import annotations

from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.request import Finish, TokenEvent
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence


class Observer:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._measured = Measured()
        self._arrived: dict[str, float] = {}  # of requests that have no token yet
        self._last_token: dict[str, float] = {}
        self._computed = 0
        self._steps = 0

    def arrived(self, request_id: str, now: float) -> None:
        """A request was queued."""
        self._arrived[request_id] = now

    def record(self, events: list[TokenEvent], now: float) -> None:
        """Takes in one step: its events, then the sequences that it ended."""
        self._steps += 1
        measured, last_token = self._measured, self._last_token
        for event in events:
            name = event.request_id
            if not event.tokens:
                continue
            measured.generation_tokens += len(event.tokens)
            if name in last_token:
                measured.inter_token_latency.observe(now - last_token[name])
            else:
                measured.time_to_first_token.observe(now - self._arrived.pop(name))
            last_token[name] = now
        computed = self._scheduler.counters.computed
        measured.iteration_tokens.observe(computed - self._computed)
        self._computed = computed
        self.take_ended(now)

    def take_ended(self, now: float) -> None:
        """Observes the sequences that ended since the last call."""
        for seq in self._scheduler.take_ended():
            self._last_token.pop(seq.request.id, None)
            self._arrived.pop(seq.request.id, None)
            self._observe_end(seq, now)

    def _observe_end(self, seq: Sequence, now: float) -> None:
        measured = self._measured
        reason = seq.finish or Finish.ABORT
        measured.finished[reason] = measured.finished.get(reason, 0) + 1
        if seq.admitted_at is None:
            return
        measured.request_prompt_tokens.observe(seq.prompt_len)
        measured.request_generation_tokens.observe(seq.generated)
        measured.request_preemptions.observe(seq.preemptions)
        measured.queue_time.observe(seq.admitted_at - seq.arrived)
        measured.inference_time.observe(now - seq.admitted_at)
        measured.e2e_latency.observe(now - seq.arrived)
        if seq.first_token_at is None:
            return
        measured.prefill_time.observe(seq.first_token_at - seq.admitted_at)
        measured.decode_time.observe(now - seq.first_token_at)
        if seq.generated > 1:
            per_token = (now - seq.first_token_at) / (seq.generated - 1)
            measured.time_per_output_token.observe(per_token)

    def snapshot(self, replica: str, fault: str | None, waiting_since: float) -> EngineStats:
        """The state now, with the totals so far."""
        scheduler, measured = self._scheduler, self._measured
        counters, pool = scheduler.counters, scheduler.cache.pool
        measured.preemptions = counters.preemptions
        measured.prefix_cache_queries = counters.prefix_queries
        measured.prefix_cache_hits = counters.prefix_hits
        measured.prompt_tokens = counters.prompt_tokens
        measured.prompt_tokens_computed = counters.prompt_computed
        measured.admission_rejections = counters.rejections
        measured.peak_blocks_used = counters.peak_blocks
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
            measured=measured,
        )
