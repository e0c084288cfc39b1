"""Decides, step by step, who computes what. Pure policy: no I/O and no clock.

    schedule(now) -> StepPlan      workers execute it      update(StepResult, now) -> StepEvents

One rule moves everything: a sequence has tokens known and tokens computed, and a step closes the
gap within a budget of tokens (vLLM's unified scheduling; chunked prefill is Sarathi's). Several
plans may be in flight; their results are matched in order. Resuming a preempted request is the
same code as admitting a new one. The sequences of a request are a group: admitted, preempted and
resumed together. Which blocks a sequence gets is `kv_cache`'s business.
"""

from __future__ import annotations

from octavo.scheduler.allocation import Reservation
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.counters import Counters
from octavo.scheduler.draft import Draft, Flight, RowChanges, birth
from octavo.scheduler.errors import InvalidRequest, QueueFull
from octavo.scheduler.events import StepEvents
from octavo.scheduler.group import Group
from octavo.scheduler.kv_cache import KvCache, Seating
from octavo.scheduler.moves import Moves
from octavo.scheduler.outcomes import Outcomes
from octavo.scheduler.plan import StepPlan, StepResult, Work
from octavo.scheduler.preemption import Decision, Preemption
from octavo.scheduler.rates import Rates
from octavo.scheduler.refusal import refuse_impossible
from octavo.scheduler.request import Finish, Request
from octavo.scheduler.roster import Roster
from octavo.scheduler.sampling import mix_seed
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.verdicts import Cause, Judge

WHOLE_AFTER = 2  # preemptions, after which a request comes back only with room for all of it
HASTE = 4  # times as many blocks are written behind while few are free


class Scheduler:
    """`config` says how, `capacity` what the workers found room for."""

    def __init__(self, config: SchedulerConfig, capacity: Capacity) -> None:
        assert capacity.block_size == config.block_size
        self.config = config
        self.capacity = capacity
        self.cache = KvCache(capacity, Reservation(config))
        self.counters = Counters()
        self.rates = Rates(capacity.block_bytes)
        self.roster = Roster(config.max_num_seqs, self.cache)
        self._preemption = Preemption(
            config.preemption_mode, self.cache, self.roster, self.rates, self.counters
        )
        self._outcomes = Outcomes(self.roster, self.cache, self.counters)
        self.judge: Judge | None = None  # whoever asks why requests are left out
        self._max_rows = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._low, self._high = config.watermarks(capacity)
        self._plenty = config.plenty(capacity)
        self._admitting = True
        self._arrivals = 0
        self._begun: list[str] = []
        self._step = 0

    @property
    def num_running(self) -> int:
        return len(self.roster.running)

    @property
    def num_waiting(self) -> int:
        return len(self.roster.waiting)

    @property
    def awaits_result(self) -> bool:
        """Whether the first in the queue waits for blocks that a step in flight computes: a plan
        made before its result would leave that request out."""
        for first in self.roster.waiting:
            return not first.awaits_result() and self.cache.is_awaited(first)
        return False

    @property
    def live_requests(self) -> list[str]:
        return list(self.roster.live)

    @property
    def groups(self) -> list[Group]:
        """All requests that have not ended, for whoever shows them."""
        return list(self.roster.live.values())

    @property
    def moving(self) -> Moves:
        """Memory operations of all plans in flight."""
        return Moves.of(flight.moves for flight in self.roster.flights)

    def add(self, request: Request, now: float, names: list[bytes] | None = None) -> None:
        """Queues a request. Raises `NeverFits`, `QueueFull` or `InvalidRequest`; then nothing of
        it is kept. One that was let in elsewhere before is never one too many. `names` are those
        of its prompt's full blocks, where whoever sends it knows them, to be kept."""
        try:
            self._refuse(request)
        except (InvalidRequest, QueueFull):
            self.counters.rejections += 1
            raise
        self._arrivals += 1
        scope = [self.config.revision, request.adapter, request.salt]
        if not self.config.enable_prefix_caching or self.config.allocation != "paged":
            scope.append(f"{self._arrivals}/{request.id}")  # a scope of its own
        group = Group(request, self._arrivals, now, tuple(scope), names)
        self.counters.resumed += group.moved
        self.roster.arrive(group)

    def abort(self, request_id: str, index: int | None = None) -> bool:
        """Frees all that a request holds, whatever its state, or what its sample `index` does, once
        samples have begun; beams end together. False if that is not live."""
        group = self.roster.live.get(request_id)
        if group is None:
            return False
        if index is not None and group.beams is None:
            if not group.forked:
                return False
            seq = next((seq for seq in group.sequences if seq.index == index), None)
            if seq is None:
                return False
            if any(other.is_held() for other in group.sequences):
                self.roster.restart(group)  # it may have been to compute what they wait for
            self.roster.end_sequence(seq, Finish.ABORT)
        else:
            self.roster.end(group, Finish.ABORT)
        return True

    def reset_prefix_cache(self) -> None:
        """No later request finds what was computed before; those that run keep what they hold."""
        self.cache.reset()

    def take_begun(self) -> list[str]:
        """Requests that were let in for the first time since the last call, and run with the next
        plan."""
        begun, self._begun = self._begun, []
        return begun

    def take_ended(self) -> list[Group]:
        """Requests that ended since the last call, for whoever keeps statistics."""
        ended, self.roster.ended = self.roster.ended, []
        return ended

    def take_decisions(self) -> list[Decision]:
        """Preemptions since the last call, for whoever keeps a log."""
        decisions, self._preemption.decisions = self._preemption.decisions, []
        return decisions

    # Making a plan

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None while there is nothing to compute that does not wait for a
        result in flight. Decodes come first, then prompts, then resumptions and admissions."""
        self.cache.begin_step(now)
        self.roster.now = now
        draft, judge = Draft(self.config.max_num_batched_tokens), self.judge
        if judge is not None:
            judge.begin()
        preempted, lacking = self._continue_decodes(draft)
        for group in lacking:
            self._continue_prefill(draft, group)
        if not preempted and self.roster.waiting:
            self._admit(draft, now)
        if judge is not None:
            judge.end(draft, self.roster, preempted)
        if not draft.work and not draft.add:
            return None
        self.counters.peak_blocks = max(self.counters.peak_blocks, self.cache.pool.used)
        self._write_behind()
        return self._send(draft)

    def _write_behind(self) -> None:
        pool = self.cache.pool
        if pool.free - pool.cached <= self._plenty:
            haste = HASTE if pool.free < self._low else 1
            self.cache.tier.write_behind(self.config.write_behind_blocks * haste)

    def resync(self) -> StepPlan:
        """A plan that gives a worker every live row whole. What was in flight is forgotten and
        computed again, with the same random numbers."""
        lost = Moves.of(
            [*(flight.moves for flight in self.roster.flights), self.cache.moves.take()]
        )
        self.roster.flights.clear()
        for group in self.groups:
            group.stepping = False
            for seq in group.sequences:
                seq.granted, seq.pending = seq.computed, 0
        for group in self.cache.undo(lost, self.groups):
            self.roster.restart(group)
        for group in self.groups:
            if len(group.sequences) > 1 and not any(seq.generated for seq in group.sequences):
                group.unfork()
        self.roster.changes = RowChanges()
        draft = Draft(0)
        for group in self.roster.running:
            for seq in group.sequences:
                self.cache.trim(seq)
                draft.add.append(birth(seq))
        return self._send(draft, reset=True)

    def _send(self, draft: Draft, reset: bool = False) -> StepPlan:
        moves = self.cache.moves.take()
        changes, self.roster.changes = self.roster.changes, RowChanges()
        plan = changes.plan(self._step, draft, moves, reset)
        self.roster.flights.append(Flight(self._step, draft, moves))
        self._step += 1
        counters = self.counters
        counters.swapped_out += len(moves.swap_out)
        counters.swapped_in += len(moves.swap_in)
        counters.stored += len(moves.store)
        counters.copied += len(moves.copy)
        return plan

    def _continue_decodes(self, draft: Draft) -> tuple[bool, list[Group]]:
        """One token for each running sequence that lacks only its last. Says whether a request was
        preempted for want of blocks, and which of the others may lack more."""
        running, heads, lane = self.roster.running, self.roster.heads, self.roster.lane
        granted, grants, work, rows = lane.granted, lane.grants, draft.work, draft.rows
        preempted, lacking = False, list[Group]()
        at = in_lane = 0
        while at < len(running):  # the budget has a token for each row
            for row in heads[at:]:
                if more := grants[row]:
                    grants[row] = more - 1
                    start = granted[row]
                    granted[row] = start + 1
                    work.append(Work(row, start, 1, True))
                    rows.append(row)
                    in_lane += 1
                elif not self._continue_group(draft, at, lacking):
                    preempted = True
                    break  # the list has changed
                at += 1
        draft.tokens += in_lane
        return preempted, lacking

    def _continue_group(self, draft: Draft, at: int, lacking: list[Group]) -> bool:
        """The same for one request; False, and nothing, where it or another had to make room."""
        group = self.roster.running[at]
        if (only := group.only) is not None and draft.extend(only, self.cache):
            return True
        ready = group.ready()
        needed = self.cache.blocks_needed(group, ready) if ready else None
        if needed is not None:
            if self.cache.pool.free < needed:
                self._preemption.make_room(at)
                return False
            for seq in ready:
                draft.open_block(seq, self.cache)
        for seq in ready:
            self._grant(draft, seq, 1)
        if len(ready) < group.width:
            lacking.append(group)
        return True

    def _continue_prefill(self, draft: Draft, group: Group, least: int = 2) -> None:
        """Known tokens for sequences that lack `least` or more, whose blocks are there already."""
        for seq in group.sequences.copy():  # it grows where samples are forked
            if draft.left <= 0:
                if self.judge is not None:
                    self.judge.hold(group, Cause.PROMPT, seq.remaining(), draft.budget)
                return
            remaining = seq.remaining()
            if remaining < least or seq.is_held():
                if self.judge is not None and remaining > 0:
                    self.judge.hold(group, Cause.SIBLING)
                continue
            if len(group.sequences) > 1 and group.beams is not None:
                remaining -= 1  # beams compute their last tokens together
            if remaining > 0:
                self._grant(draft, seq, min(remaining, draft.left))

    def _grant(self, draft: Draft, seq: Sequence, count: int) -> None:
        assert seq.row is not None
        start, group = seq.granted, seq.group
        seq.granted = end = start + count
        known = len(seq.tokens) + seq.pending
        sample = end == known < seq.limit
        draft.tokens += count
        if count > 1:
            draft.chunked += count
        plain = sample and count == 1 and start >= seq.prompt_len and group.plain
        draft.work.append(Work(seq.row, start, count, sample))
        draft.rows.append(seq.row if plain else ~seq.row)
        if not sample:
            return
        if group.beams is not None:
            group.stepping = True
            return
        seq.pending += 1
        self.roster.lane.enter(seq)
        if not group.forked:
            self._fork_samples(draft, seq)

    def _fork_samples(self, draft: Draft, first: Sequence) -> None:
        """The prompt is computed with this step: all samples draw their first token from it."""
        group, seed = first.group, first.group.request.sampling.seed
        assert first.row is not None and seed is not None
        group.forked = True
        for index in group.indices[1:]:
            twin = self.cache.fork(first, index)
            group.sequences.append(twin)
            self.roster.fork_row(twin, first, mix_seed(seed, index))
            assert twin.row is not None
            draft.work.append(Work(twin.row, twin.granted, 0, True))
            draft.rows.append(~twin.row)

    # Letting requests in

    def _admit(self, draft: Draft, now: float) -> None:
        free = self.cache.pool.free
        if free < self._low:
            self._admitting = False
        elif free >= self._high:
            self._admitting = True
        waiting, running, judge = self.roster.waiting, self.roster.running, self.judge
        if draft.left <= 0 or not self.roster.free_rows:
            if judge is not None:
                judge.full(waiting, draft, self.roster.rows(), self._max_rows)
            return
        rows, admitted, held = self.roster.rows(), 0, False  # held: an adapter waits for its turn
        for place, group in enumerate(waiting, 1):
            if draft.left <= 0 or rows + group.rows() > self._max_rows:
                if judge is not None:
                    judge.full(waiting, draft, rows, self._max_rows)
                break
            if running and not self._admitting:
                if judge is not None:
                    judge.stop(waiting, group, Cause.WATERMARK, self._high, self.cache.pool.free)
                break  # never an idle engine: with nothing running, watermarks do not hold
            if adapter := group.request.adapter:
                held = held or self.roster.mixes_too_many(adapter, self.config.max_loras)
                if held:
                    if judge is not None:
                        judge.hold(group, Cause.ADAPTERS, there=self.config.max_loras or 0)
                    continue  # those behind must not keep it waiting for ever; the model's own pass
            seating = None
            if not self.cache.still_waits(group) and not group.awaits_result():
                seating = self.cache.find_seats(group)
            if seating is None:  # what it needs next is being computed; those behind need not wait
                if judge is not None:
                    judge.hold(group, Cause.RESULT if group.awaits_result() else Cause.SHARED)
                continue
            whole = group.preemptions >= WHOLE_AFTER  # only with all it may become, so that it ends
            needed = self.cache.blocks_to_seat(group, seating, whole)
            free, reserve = self.cache.pool.free, self._low if running else 0
            if free - needed < reserve:
                if judge is not None:
                    cause = Cause.WHOLE if whole else Cause.BLOCKS
                    judge.stop(waiting, group, cause, needed, free, reserve)
                break
            rows += group.rows()
            self._seat(draft, group, seating, now)
            admitted = place
        self.roster.waiting.drop_admitted(admitted)

    def _seat(self, draft: Draft, group: Group, seating: Seating, now: float) -> None:
        first = group.admitted_at is None
        if first:
            group.admitted_at = now
            self._begun.append(group.request.id)
        if first and not group.request.resumed:
            from_host = sum(entry < 0 for entry in seating.found[0])
            group.cached = len(seating.found[0]) * self.cache.block_size
            self.counters.prefix_queries += group.prompt_len
            self.counters.prefix_hits += group.cached
            self.counters.host_prefix_hits += from_host * self.cache.block_size
        self.cache.seat(group, seating)
        self.roster.seat(group)
        draft.add += [birth(seq) for seq in group.sequences]
        # Siblings that lack only their last token may have to copy a block first: the next step's
        # decodes see to it.
        self._continue_prefill(draft, group, least=1 if len(group.sequences) == 1 else 2)

    # Taking a result in

    def update(self, result: StepResult, now: float) -> StepEvents:
        """What came of the oldest plan in flight, one event for each sample it moved."""
        flight = self.roster.flights[0]
        self.rates.observe_step(flight, result)
        events = self._outcomes.take(flight, result, now)
        self.roster.flights.popleft()
        return events

    def _refuse(self, request: Request) -> None:
        refuse_impossible(request, self.config, self.capacity)
        if request.id in self.roster.live:
            raise InvalidRequest("request_id", f"request id {request.id!r} is already running")
        full = len(self.roster.waiting) >= self.config.max_num_queued_reqs
        if full and request.resumed is None:
            raise QueueFull(
                f"{len(self.roster.waiting)} requests are waiting, which is the bound; "
                "try again later"
            )
