"""Who runs, who waits, and on which rows: the life of requests between arrival and end."""

from __future__ import annotations

from octavo.scheduler.draft import RowChanges
from octavo.scheduler.group import Group
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.plan import Fork
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.request import Finish
from octavo.scheduler.sequence import Sequence


class Roster:
    """`running` is sorted by priority, then by admission. `changes` collects what the workers have
    yet to be told of rows."""

    def __init__(self, num_rows: int, cache: KvCache) -> None:
        self.running: list[Group] = []
        self.waiting = WaitingQueue()
        self.live: dict[str, Group] = {}
        self.ended: list[Group] = []
        self.changes = RowChanges()
        self.free_rows = list(range(num_rows - 1, -1, -1))
        self._cache = cache

    def arrive(self, group: Group) -> None:
        self.live[group.request.id] = group
        self.waiting.push(group)

    def seat(self, group: Group) -> None:
        """Gives each sequence a row. The caller takes the group out of the queue."""
        place = len(self.running)
        while place and self.running[place - 1].priority > group.priority:
            place -= 1
        self.running.insert(place, group)
        group.running = True
        for seq in group.sequences:
            seq.row = self.free_rows.pop()
            seq.epoch += 1

    def fork_row(self, twin: Sequence, parent: Sequence, seed: int) -> None:
        """A row for a forked sequence; none while its parent has none."""
        if parent.row is None:
            return
        twin.row = self.free_rows.pop()
        self.changes.fork[twin.row] = Fork(twin.row, parent.row, seed)

    def continue_row(self, seq: Sequence, token: int) -> None:
        """A token that the scheduler chose."""
        seq.tokens.append(token)
        if seq.row is not None:
            self.changes.append[seq.row] = token

    def restart(self, group: Group) -> None:
        """Back into the queue, without rows and device blocks."""
        self.running.remove(group)
        group.running = False
        for seq in group.sequences:
            self.unseat(seq)
            seq.restart()
        self.waiting.push(group)

    def unseat(self, seq: Sequence) -> None:
        """Takes a sequence's row and device blocks."""
        assert seq.row is not None
        self.changes.end(seq.row)
        self.free_rows.append(seq.row)
        seq.row = None
        self._cache.vacate(seq)

    def retire(self, seq: Sequence) -> None:
        """Takes all that a sequence holds, wherever it is."""
        if seq.row is not None:
            self.unseat(seq)
        self._cache.tier.discard(seq)

    def end_sequence(self, seq: Sequence, reason: Finish) -> None:
        """One sample has ended; with the last of them, its request has."""
        group = seq.group
        self.retire(seq)
        seq.finish = reason
        group.sequences.remove(seq)
        if not group.sequences:
            self._close(group, reason)

    def end(self, group: Group, reason: Finish) -> None:
        """Frees all that a request holds; `sweep` takes it out of the running list."""
        for seq in group.sequences:
            self.retire(seq)
            seq.finish = reason
        self._close(group, reason)

    def sweep(self) -> None:
        """Takes those that ended out of the running list."""
        if any(group.finish is not None for group in self.running):
            self.running = [group for group in self.running if group.finish is None]

    def _close(self, group: Group, reason: Finish) -> None:
        if not group.running:
            self.waiting.remove(group)
        group.finish = reason
        del self.live[group.request.id]
        self.ended.append(group)
