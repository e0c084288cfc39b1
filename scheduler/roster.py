"""Who runs, who waits, and on which rows: the life of requests between arrival and end."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque

from octavo.scheduler.draft import Flight, RowChanges
from octavo.scheduler.group import Group
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.lane import Lane
from octavo.scheduler.plan import Fork
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.request import Finish
from octavo.scheduler.sequence import Sequence


def _order(group: Group) -> tuple[int, int]:
    """Priority, then admission."""
    return group.priority, group.seated


class Roster:
    """`running` is sorted by priority, then by admission; `heads` are the rows of those requests in
    it that never have another. `seated` has the sequence of each row. `changes` collects what the
    workers have yet to be told of rows; the `flights` under way are told who leaves one."""

    def __init__(self, num_rows: int, cache: KvCache) -> None:
        self.running: list[Group] = []
        self.heads = array("q")
        self.lane = Lane(num_rows, cache.block_size)
        self.seated: list[Sequence | None] = [None] * num_rows
        self.flights: deque[Flight] = deque()
        self.waiting = WaitingQueue()
        self.live: dict[str, Group] = {}
        self.ended: list[Group] = []
        self.changes = RowChanges()
        self.now = 0.0  # of the plan that is being made
        self.free_rows = list(range(num_rows - 1, -1, -1))
        self._num_rows = num_rows
        self._wide: list[Group] = []  # of those that run, with more than one sequence to come
        self._seated = 0
        self._cache = cache

    def rows(self) -> int:
        """Rows that are taken, or promised to running requests for when they fork."""
        promised = sum(group.rows() - len(group.sequences) for group in self._wide)
        return self._num_rows - len(self.free_rows) + promised

    def mixes_too_many(self, adapter: str, most: int | None) -> bool:
        """Whether with one more request of `adapter` there would be more than `most` adapters."""
        if most is None:
            return False
        running = {group.request.adapter for group in self.running}
        return len((running | {adapter}) - {""}) > most

    def arrive(self, group: Group) -> None:
        self.live[group.id] = group
        self.waiting.push(group)

    def seat(self, group: Group) -> None:
        """Gives each sequence a row. The caller takes the group out of the queue."""
        self._seated += 1
        group.seated = self._seated
        group.running = True
        for seq in group.sequences:
            self._give_row(seq)
        head = self.lane.nobody if group.only is None else group.only.row
        assert head is not None
        place = bisect_right(self.running, _order(group), key=_order)
        self.running.insert(place, group)
        self.heads.insert(place, head)
        if group.width > 1:
            self._wide.append(group)

    def _give_row(self, seq: Sequence) -> int:
        seq.row = row = self.free_rows.pop()
        self.seated[row] = seq
        return row

    def fork_row(self, twin: Sequence, parent: Sequence, seed: int) -> None:
        """A row for a forked sequence; none while its parent has none."""
        if parent.row is None:
            return
        row = self._give_row(twin)
        self.changes.fork[row] = Fork(row, parent.row, seed)

    def continue_row(self, seq: Sequence, token: int) -> None:
        """A token that the scheduler chose."""
        seq.tokens.append(token)
        if seq.row is not None:
            self.changes.append[seq.row] = token

    def restart(self, group: Group) -> None:
        """Back into the queue, without rows and device blocks."""
        self._stop(group)
        for seq in group.sequences:
            self.unseat(seq)
            seq.restart()
        group.queued_at = self.now
        self.waiting.push(group)

    def unseat(self, seq: Sequence) -> None:
        """Takes a sequence's row and device blocks."""
        row = seq.row
        assert row is not None
        seq.leave_lane()
        self.changes.end(row)
        for flight in self.flights:
            flight.left.setdefault(row, seq)
        self.free_rows.append(row)
        self.seated[row] = seq.row = None
        self._cache.vacate(seq)

    def retire(self, seq: Sequence) -> None:
        """Takes all that a sequence holds, wherever it is."""
        if seq.row is not None:
            self.unseat(seq)
        self._cache.tier.discard(seq)

    def end_sequence(self, seq: Sequence, reason: Finish) -> None:
        """One sample has ended; with the last of them, its request has."""
        group = seq.group
        self._finish(seq, reason)
        group.sequences.remove(seq)
        if not group.sequences:
            self._close(group, reason)

    def end(self, group: Group, reason: Finish) -> None:
        """Frees all that a request holds."""
        for seq in group.sequences:
            self._finish(seq, reason)
        self._close(group, reason)

    def _finish(self, seq: Sequence, reason: Finish) -> None:
        self.retire(seq)
        seq.finish = reason
        if seq.group.beams is None:  # of beams, those count that are delivered
            seq.group.generated += seq.generated
            seq.group.longest = max(seq.group.longest, seq.generated)

    def _close(self, group: Group, reason: Finish) -> None:
        if group.running:
            self._stop(group)
        else:
            self.waiting.remove(group)
        group.finish = reason
        group.sequences, group.only = [], None  # else they would keep each other from being freed
        del self.live[group.id]
        self.ended.append(group)

    def _stop(self, group: Group) -> None:
        place = bisect_left(self.running, _order(group), key=_order)
        assert self.running[place] is group
        del self.running[place], self.heads[place]
        if group.width > 1:
            self._wide.remove(group)
        group.running = False
