"""Decides, step by step, who computes what. Pure policy: no I/O and no clock.

    schedule(now) -> StepPlan      workers execute it      update(StepResult, now) -> TokenEvents

One rule moves everything: a sequence has tokens known and tokens computed, and a step closes the
gap within a budget of tokens (vLLM's unified scheduling; chunked prefill is Sarathi's). Several
plans may be in flight; their results are matched in order. Resuming a preempted sequence is the
same code as admitting a new one. Which blocks a sequence gets is `kv_cache`'s business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest, NeverFits, QueueFull
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.plan import Add, Grow, StepPlan, StepResult, Work
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)
class Counters:
    """Totals since the start; tokens unless said otherwise."""

    preemptions: int = 0  # requests
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0  # of requests whose prompt was processed, hits included
    prompt_computed: int = 0  # recomputed ones after a preemption included
    computed: int = 0
    rejections: int = 0  # requests
    peak_blocks: int = 0  # blocks


@dataclass(slots=True)
class _Draft:
    """A plan being made: what is left of the budget, and the changes so far."""

    budget: int
    work: list[Work] = field(default_factory=list)
    add: list[Add] = field(default_factory=list)
    grow: list[Grow] = field(default_factory=list)
    owners: list[tuple[Sequence, int]] = field(default_factory=list)  # of each Work, with its epoch


@dataclass(slots=True, frozen=True)
class _Flight:
    """A plan that went out and whose result is not back."""

    step: int
    work: list[Work]
    owners: list[tuple[Sequence, int]]


class Scheduler:
    """`config` says how, `capacity` what the workers found room for."""

    def __init__(self, config: SchedulerConfig, capacity: Capacity) -> None:
        assert capacity.block_size == config.block_size
        self.config = config
        self.capacity = capacity
        self.cache = KvCache(capacity)
        self.counters = Counters()
        self._waiting = WaitingQueue()
        # Sorted by priority, then by admission: victims of preemption come from the end.
        self._running: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._ended: list[Sequence] = []
        self._flights: deque[_Flight] = deque()
        self._max_running = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._dropped_rows: list[int] = []
        self._low = int(capacity.usable_blocks * config.watermark_low)
        self._high = int(capacity.usable_blocks * config.watermark_high)
        self._admitting = True
        self._arrivals = 0
        self._step = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def awaits_result(self) -> bool:
        """Whether the first in the queue waits for blocks that a step in flight computes: a plan
        made before its result would leave that request out."""
        for first in self._waiting:
            return not first.pending and self.cache.find_prefix(first) is None
        return False

    @property
    def live_requests(self) -> list[str]:
        return list(self._live)

    def add(self, request: Request, now: float) -> None:
        """Queues a request. Raises `NeverFits`, `QueueFull` or `InvalidRequest`; then nothing of
        it is kept."""
        try:
            self._refuse(request)
        except (InvalidRequest, QueueFull):
            self.counters.rejections += 1
            raise
        self._arrivals += 1
        salt = request.salt
        if not self.config.enable_prefix_caching:
            salt = f"{self._arrivals}/{request.id}"  # a scope of its own
        seq = Sequence(request, self._arrivals, now, salt)
        self._live[request.id] = seq
        self._waiting.push(seq)

    def abort(self, request_id: str) -> bool:
        """Frees all that a request holds, whatever its state. False if it is not live."""
        seq = self._live.get(request_id)
        if seq is None:
            return False
        self._end(seq, Finish.ABORT)
        self._running = [other for other in self._running if other is not seq]
        return True

    def take_ended(self) -> list[Sequence]:
        """Sequences that ended since the last call, for whoever keeps statistics."""
        ended, self._ended = self._ended, []
        return ended

    # Making a plan

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None while there is nothing to compute that does not wait for a
        result in flight. Decodes come first, then prompts, then resumptions and admissions."""
        draft = _Draft(self.config.max_num_batched_tokens)
        preempted = self._continue_decodes(draft)
        self._continue_prefills(draft)
        if not preempted and self._waiting:
            self._admit(draft, now)
        if not draft.work:
            return None
        self.counters.peak_blocks = max(self.counters.peak_blocks, self.cache.pool.used)
        return self._send(draft)

    def resync(self) -> StepPlan:
        """A plan that gives a worker every live row whole. What was in flight is forgotten and
        computed again, with the same random numbers."""
        self._flights.clear()
        for seq in self._live.values():
            seq.granted, seq.pending = seq.computed, 0
        self._dropped_rows = []
        draft = _Draft(0)
        for seq in self._running:
            self.cache.trim(seq)
            draft.add.append(self._birth(seq))
        return self._send(draft, reset=True)

    def _send(self, draft: _Draft, reset: bool = False) -> StepPlan:
        plan = StepPlan(
            self._step, draft.work, self._dropped_rows, draft.add, draft.grow, reset=reset
        )
        self._flights.append(_Flight(self._step, draft.work, draft.owners))
        self._dropped_rows = []
        self._step += 1
        return plan

    def _continue_decodes(self, draft: _Draft) -> bool:
        """One token for each running sequence that lacks only its last. True if one was
        preempted for want of blocks."""
        running, pool, block_size = self._running, self.cache.pool, self.cache.block_size
        preempted = False
        at = 0
        while at < len(running) and draft.budget > 0:
            seq = running[at]
            if seq.remaining() == 1:
                if seq.granted == len(seq.table) * block_size:
                    while not pool.free and seq.row is not None:
                        preempted = True
                        self._preempt(self._victim(at))
                    if seq.row is None:
                        continue  # it left the list, and the next one stands in its place
                    block = pool.take()
                    seq.table.append(block)
                    draft.grow.append(Grow(seq.row, [block]))
                self._grant(draft, seq, 1)
            at += 1
        return preempted

    def _continue_prefills(self, draft: _Draft) -> None:
        for seq in self._running:
            if draft.budget <= 0:
                return
            remaining = seq.remaining()
            if remaining > 1:
                self._grant(draft, seq, min(remaining, draft.budget))

    def _grant(self, draft: _Draft, seq: Sequence, count: int) -> None:
        assert seq.row is not None
        start = seq.granted
        seq.granted = end = start + count
        known = len(seq.tokens) + seq.pending
        sample = end == known < seq.limit
        if sample:
            seq.pending += 1
        draft.budget -= count
        draft.work.append(Work(seq.row, start, count, sample))
        draft.owners.append((seq, seq.epoch))

    def _victim(self, at: int) -> Sequence:
        """The most recently admitted of the lowest priority, from `at` on, that gives a block
        back; the one at `at` itself where no other does."""
        for seq in reversed(self._running[at + 1 :]):
            if self.cache.gives_back(seq):
                return seq
        return self._running[at]

    def _preempt(self, seq: Sequence) -> None:
        """By recomputation: its published blocks stay findable for as long as nobody needs them."""
        self._running.remove(seq)
        self._unseat(seq)
        seq.restart()
        self.counters.preemptions += 1
        self._waiting.push(seq)

    def _admit(self, draft: _Draft, now: float) -> None:
        free = self.cache.pool.free
        if free < self._low:
            self._admitting = False
        elif free >= self._high:
            self._admitting = True
        admitted = False
        for seq in self._waiting:
            if draft.budget <= 0 or len(self._running) >= self._max_running:
                break
            if self._running and not self._admitting:
                break  # never an idle engine: with nothing running, watermarks do not hold
            if seq.pending:
                continue  # it was preempted with a token in flight
            hits = self.cache.find_prefix(seq)
            if hits is None:
                continue  # another is computing its next block; those behind need not wait
            # Preempted twice: only with room for all it may still become, so that it ends.
            tokens = seq.limit if seq.preemptions >= 2 else len(seq.tokens)
            if not self.cache.fits(hits, tokens, self._low if self._running else 0):
                break
            self._seat(draft, seq, hits, now)
            admitted = True
        if admitted:
            self._waiting.drop_admitted()

    def _seat(self, draft: _Draft, seq: Sequence, hits: list[int], now: float) -> None:
        self.cache.seat(seq, hits)
        seq.row = self._free_rows.pop()
        seq.epoch += 1
        if seq.admitted_at is None:
            seq.admitted_at = now
            seq.cached = seq.computed
            self.counters.prefix_queries += seq.prompt_len
            self.counters.prefix_hits += seq.cached
        place = len(self._running)
        while place and self._running[place - 1].priority > seq.priority:
            place -= 1
        self._running.insert(place, seq)
        draft.add.append(self._birth(seq))
        self._grant(draft, seq, min(seq.remaining(), draft.budget))

    def _birth(self, seq: Sequence) -> Add:
        assert seq.row is not None
        sampling = seq.request.sampling
        if sampling.prompt_logprobs is not None and not seq.wants_prompt_logprobs():
            sampling = sampling.replace(prompt_logprobs=None)  # they were delivered before
        return Add(
            seq.row, seq.tokens.copy(), seq.prompt_len, seq.table.copy(), seq.granted, sampling
        )

    # Taking a result in

    def update(self, result: StepResult, now: float) -> list[TokenEvent]:
        """What came of the oldest plan in flight, one event for each request it moved."""
        flight = self._flights.popleft()
        assert flight.step == result.step, f"result {result.step} for plan {flight.step}"
        events: list[TokenEvent] = []
        block_size = self.cache.block_size
        sampled = 0
        for index, (work, (seq, epoch)) in enumerate(zip(flight.work, flight.owners, strict=True)):
            token, logprob = None, None
            if work.sample:
                token = result.tokens[sampled]
                logprob = result.logprobs[sampled] if result.logprobs else None
                sampled += 1
            if seq.finish is not None:
                continue  # it ended, or its user left, while the step ran
            self.counters.computed += work.count
            if work.start < seq.prompt_len:
                self.counters.prompt_computed += min(work.count, seq.prompt_len - work.start)
            if index in result.errors:  # what it wrote is not to be found by others
                self._end(seq, Finish.ERROR)
                events.append(
                    TokenEvent(seq.request.id, [], seq.finish, error=result.errors[index])
                )
                continue
            if seq.epoch == epoch:
                seq.computed = work.start + work.count
                if index in result.prompt_logprobs:
                    seq.take_prompt_logprobs(result.prompt_logprobs[index])
                if seq.computed >= (seq.published + 1) * block_size:
                    self.cache.publish(seq)
            if token is not None:
                seq.pending -= 1
                seq.tokens.append(token)
                events.append(self._event(seq, token, logprob, now))
            elif seq.limit == seq.prompt_len == seq.computed:  # a prompt to score, not to continue
                events.append(self._event(seq, None, None, now))
        if any(seq.finish is not None for seq in self._running):
            self._running = [seq for seq in self._running if seq.finish is None]
        return events

    def _event(
        self, seq: Sequence, token: int | None, logprob: Logprob | None, now: float
    ) -> TokenEvent:
        tokens = [] if token is None else [token]
        event = TokenEvent(seq.request.id, tokens, cached_tokens=seq.cached)
        if logprob is not None:
            event.logprobs = [logprob]
        if seq.generated <= 1:
            seq.first_token_at = now
            self.counters.prompt_tokens += seq.prompt_len
            event.prompt_logprobs = seq.prompt_logprobs
        if token in seq.stop:
            event.stop_token = token
            self._end(seq, Finish.STOP)
        elif len(seq.tokens) >= seq.limit:
            self._end(seq, Finish.LENGTH)
        event.finish = seq.finish
        return event

    def _end(self, seq: Sequence, reason: Finish) -> None:
        """Frees what a sequence holds; the caller takes it out of the running list."""
        if seq.row is None:
            self._waiting.remove(seq)
        else:
            self._unseat(seq)
        seq.finish = reason
        del self._live[seq.request.id]
        self._ended.append(seq)

    def _unseat(self, seq: Sequence) -> None:
        assert seq.row is not None
        self._dropped_rows.append(seq.row)
        self._free_rows.append(seq.row)
        seq.row = None
        self.cache.vacate(seq)

    # Refusals and checks

    def _refuse(self, request: Request) -> None:
        sampling, size = request.sampling, len(request.prompt)
        assert sampling.max_tokens is not None, "the front resolves max_tokens"
        if not request.prompt:
            raise InvalidRequest("prompt", "the prompt has no tokens; send at least one")
        if request.id in self._live:
            raise InvalidRequest("request_id", f"request id {request.id!r} is already running")
        total = size + sampling.max_tokens
        bounds = (
            (self.config.max_model_len, "the model's context"),
            (self.capacity.tokens, "the whole KV cache"),
        )
        for bound, what in bounds:
            if total > bound:
                raise NeverFits(
                    "max_tokens",
                    f"{what} holds {bound} tokens, but the prompt has {size} and max_tokens is "
                    f"{sampling.max_tokens}, together {total}: shorten one of them",
                )
        if len(self._waiting) >= self.config.max_num_queued_reqs:
            raise QueueFull(
                f"{len(self._waiting)} requests are waiting, which is the bound; try again later"
            )

    def check(self) -> None:
        """Asserts the invariants of memory and of the queues. O(everything); for tests."""
        self.cache.check(self._running)
        rows = [seq.row for seq in self._running if seq.row is not None]
        assert sorted([*rows, *self._free_rows]) == list(range(self.config.max_num_seqs))
        for seq in self._waiting:
            assert seq.row is None and not seq.table
        assert len(self._running) + len(self._waiting) == len(self._live)
        assert all(seq.finish is None for seq in self._live.values())
