"""Takes the result of a step in: confirms what was computed, appends what was chosen, ends."""

from __future__ import annotations

from octavo.scheduler.counters import Counters
from octavo.scheduler.draft import Flight
from octavo.scheduler.events import StepEvents
from octavo.scheduler.group import Group
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.plan import StepResult, Work
from octavo.scheduler.request import Finish, Logprob, TokenEvent
from octavo.scheduler.roster import Roster
from octavo.scheduler.sequence import Sequence

Candidates = list[tuple[int, float]]


class Outcomes:
    def __init__(self, roster: Roster, cache: KvCache, counters: Counters) -> None:
        self._roster = roster
        self._cache = cache
        self._counters = counters

    def take(self, flight: Flight, result: StepResult, now: float) -> StepEvents:
        """One event for each sample that the step moved."""
        assert flight.step == result.step, f"result {result.step} for plan {flight.step}"
        moved = StepEvents([], [], [])
        events, names, fresh = moved.others, moved.names, moved.tokens
        beams: dict[Group, list[Candidates]] = {}
        tokens, logprobs, candidates = result.tokens, result.logprobs, iter(result.candidates)
        counters, works, left = self._counters, flight.draft.work, flight.left
        errors, scores = result.errors, result.prompt_logprobs
        lane, seated, size = self._roster.lane, self._roster.seated, self._cache.block_size
        more, stops, recent = lane.results, lane.stops, lane.tokens
        ids, chosen = lane.ids, 0
        for index, row in enumerate(flight.draft.rows):
            choice, found = None, None
            if row < 0:
                row = ~row
            elif row not in left and not errors and (token := tokens[chosen]) not in stops:
                if place := more[row]:
                    more[row] = place = place - 1
                    recent[row * size + place] = token
                elif not self._fill(seated[row], token):
                    place = -1
                if place >= 0:
                    names.append(ids[row])
                    fresh.append(token)
                    chosen += 1
                    continue
            work, seq = works[index], left.get(row) or seated[row]
            assert seq is not None
            if work.sample:
                if seq.group.beams is None:
                    choice = tokens[chosen], logprobs[chosen] if logprobs else None
                    chosen += 1
                else:
                    found = next(candidates)
            if seq.finish is not None:
                continue  # it ended, or its user left, while the step ran
            counters.computed += work.count
            if work.start < seq.prompt_len:
                counters.prompt_computed += min(work.count, seq.prompt_len - work.start)
            if index in errors:  # what it wrote is not to be found by others
                events.append(self._fail(seq.group, errors[index]))
                continue
            if row not in left:
                self._confirm(seq, work, scores.get(index))
            elif seq.wants_prompt_logprobs():  # all of it comes again: the scores, then the draw
                seq.pending -= choice is not None
                seq.group.stepping &= found is None
                continue
            if choice is not None:
                seq.pending -= 1
                token, logprob = choice
                seq.tokens.append(token)
                events.append(self._continue(seq, token, logprob, now))
            elif found is not None:
                beams.setdefault(seq.group, []).append(found)
            elif seq.limit == seq.prompt_len == seq.computed:
                events += self._score(seq, now)
        assert chosen == len(tokens)
        counters.computed += len(names)
        for group, rows in beams.items():
            if group.finish is None:
                events += self._step_beams(group, rows, now)
        return moved

    def _fill(self, seq: Sequence | None, token: int) -> bool:
        """Takes a result that fills the block of a row in the lane; False if it does not."""
        if seq is None or seq.lane is None:
            return False
        computed = seq.lane.fill(seq, token)
        if computed is None:
            return False
        self._cache.publish(seq, computed)
        if seq.lane is not None:  # nobody looked at it
            seq.lane.filled(seq, computed)
        return True

    def _confirm(self, seq: Sequence, work: Work, scores: list[Logprob] | None) -> None:
        seq.computed = work.start + work.count
        if scores is not None:
            seq.take_prompt_logprobs(scores)
        if seq.computed >= (seq.published + 1) * self._cache.block_size:
            self._cache.publish(seq, seq.computed)

    def _continue(
        self, seq: Sequence, token: int, logprob: Logprob | None, now: float
    ) -> TokenEvent:
        group = seq.group
        event = TokenEvent(group.id, [token], cached_tokens=group.cached, index=seq.index)
        if logprob is not None:
            event.logprobs = [logprob]
        if len(seq.tokens) == seq.prompt_len + 1:
            self._begin(group, now)
            event.prompt_logprobs = seq.prompt_logprobs
        if token in seq.stop:
            event.stop_token = token
            self._roster.end_sequence(seq, Finish.STOP)
        elif len(seq.tokens) >= seq.limit:
            self._roster.end_sequence(seq, Finish.LENGTH)
        else:
            self._roster.lane.enter(seq)
        event.finish = seq.finish
        return event

    def _begin(self, group: Group, now: float) -> None:
        """The first token of a request is there."""
        if group.first_token_at is None:
            group.first_token_at = now
            self._counters.prompt_tokens += group.prompt_len

    def _score(self, seq: Sequence, now: float) -> list[TokenEvent]:
        """A prompt that was to be scored and not continued, however many samples were asked for."""
        group = seq.group
        self._begin(group, now)
        self._roster.end(group, Finish.LENGTH)
        return [
            TokenEvent(
                group.id,
                [],
                Finish.LENGTH,
                prompt_logprobs=None if index else seq.prompt_logprobs,
                cached_tokens=group.cached,
                index=index,
            )
            for index in range(group.request.sampling.n)
        ]

    def _fail(self, group: Group, error: str) -> TokenEvent:
        self._roster.end(group, Finish.ERROR)
        return TokenEvent(group.id, [], Finish.ERROR, error=error)

    def _step_beams(
        self, group: Group, candidates: list[Candidates], now: float
    ) -> list[TokenEvent]:
        """Survivors are forked before their parents are freed; the first child of a parent takes
        its place, row and blocks included. A preempted group's beams go on without either."""
        assert group.beams is not None
        group.stepping = False
        self._begin(group, now)
        survivors = group.beams.step(candidates)
        if group.beams.done:
            return self._end_beams(group)
        parents, children = group.sequences, list[Sequence]()
        twins: list[tuple[Sequence, Sequence]] = []
        used: set[int] = set()
        for survivor in survivors:
            child = parent = parents[survivor.parent]
            if survivor.parent in used:
                child = self._cache.fork(parent, 0)
                child.prompt_logprobs = parent.prompt_logprobs  # whoever is first delivers them
                twins.append((child, parent))
            used.add(survivor.parent)
            children.append(child)
        for place, parent in enumerate(parents):
            if place not in used:
                self._roster.retire(parent)
        for twin, parent in twins:
            self._roster.fork_row(twin, parent, group.request.sampling.seed or 0)
        for child, survivor in zip(children, survivors, strict=True):
            self._roster.continue_row(child, survivor.token)
        group.sequences, group.forked = children, True
        return []

    def _end_beams(self, group: Group) -> list[TokenEvent]:
        assert group.beams is not None
        sampling = group.request.sampling
        prompt_logprobs = group.sequences[0].prompt_logprobs
        events = []
        for index, beam in enumerate(group.beams.best(sampling.n)):
            finish = Finish.LENGTH if beam.stop_token is None else Finish.STOP
            event = TokenEvent(group.id, beam.tokens, finish, beam.stop_token)
            if sampling.logprobs is not None:
                event.logprobs = [
                    Logprob(*each)
                    for each in zip(beam.tokens, beam.logprobs, beam.ranks, strict=True)
                ]
            event.prompt_logprobs = None if index else prompt_logprobs
            event.cached_tokens, event.index = group.cached, index
            event.cumulative_logprob, event.score = sum(beam.logprobs), beam.score
            group.generated += len(beam.tokens)
            group.longest = max(group.longest, len(beam.tokens))
            events.append(event)
        self._roster.end(group, events[0].finish or Finish.LENGTH)
        return events
