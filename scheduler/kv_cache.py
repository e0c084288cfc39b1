"""The KV cache manager: which blocks a request holds, shares, fills, saves and gives back.

Works on sequences' tables and on both pools; knows nothing of budgets, queues or plans. One
mechanism serves first admissions and resumptions: walk the chain of hashes, share what the device
has, bring in what the host has, allocate the rest, start computing at the first miss.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from octavo.scheduler.allocation import Reservation
from octavo.scheduler.blocks import BlockPool
from octavo.scheduler.config import Capacity
from octavo.scheduler.group import Group
from octavo.scheduler.host_pool import HostPool
from octavo.scheduler.host_tier import HostTier
from octavo.scheduler.moves import Moves
from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)
class Seating:
    """How a group's tables would begin, sequence by sequence. An entry of `found` is a device
    block, or ~h for host block h. The first `count` blocks are those of an earlier sequence, as
    `shared` (its place in the group, count) says; its computing has to come first.
    """

    found: list[list[int]] = field(default_factory=list)
    shared: list[tuple[int, int]] = field(default_factory=list)
    device_blocks: int = 0  # that will be taken from the free ones, hits among them included


class KvCache:
    """`moves` collects the memory operations of the plan being made."""

    def __init__(self, capacity: Capacity, reservation: Reservation) -> None:
        self.pool = BlockPool(capacity.num_blocks)
        self.host = HostPool(capacity.num_host_blocks)
        self.block_size = capacity.block_size
        self.moves = Moves()
        self.tier = HostTier(self.pool, self.host, self.moves, capacity.block_size)
        self._reservation = reservation
        # Blocks that a running sequence is about to fill, by name: others wait for them instead
        # of computing the same content twice.
        self.claims: dict[bytes, Sequence] = {}

    def begin_step(self, now: float) -> None:
        """Before a plan is made: what rested on the host may be taken."""
        self.host.settle()
        self.pool.ages.tell(now)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # Taking a seat

    def find_seats(self, group: Group) -> Seating | None:
        """What is there of a group's content, or None where the next block of its first sequence
        is being computed by another group. The last token is always left to compute."""
        seating = Seating()
        earlier: dict[bytes, int] = {}  # the first sequence with a block, by its name
        for place, seq in enumerate(group.sequences):
            if seq.host_table:
                found, shared = self._find_saved(seq), (0, 0)
            else:
                shared = self._common_prefix(earlier, seq)
                hits = self._find_prefix(seq, shared[1], waiting=place == 0)
                if hits is None:
                    return None
                found = hits
            seating.found.append(found)
            seating.shared.append(shared)
            if len(group.sequences) > 1:
                for name in seq.hashes(self.block_size):
                    earlier.setdefault(name, place)
        self._count(group, seating)
        return seating

    def is_awaited(self, group: Group) -> bool:
        """Whether the group's next block is being computed by another."""
        first = group.sequences[0]
        return self.still_waits(group) or (
            not first.host_table and self._find_prefix(first, 0, waiting=True) is None
        )

    def still_waits(self, group: Group) -> bool:
        """Whether the group was found to wait for a block that is still being computed. Asked of
        each in a long queue in each step: no more than a glance."""
        return group.sequences[0].waits_for in self.claims

    def blocks_to_seat(self, group: Group, seating: Seating, whole: bool) -> int:
        """Free blocks that the group's known tokens take, or all that it may `whole` become."""
        more = 0
        for seq in group.sequences:
            held = self.blocks_for(len(seq.tokens))
            more += self._reservation.blocks(seq) - held if self._reservation.active else 0
            if whole:
                more += self.blocks_for(seq.limit) - held
        if not group.forked:
            start = group.prompt_len // self.block_size
            limit = group.sequences[0].limit if whole else group.prompt_len + 1
            more += (group.rows() - 1) * (self.blocks_for(limit) - start)
        return seating.device_blocks + more

    def seat(self, group: Group, seating: Seating) -> None:
        """Gives a group the blocks of all its known tokens at once: nobody waits half loaded while
        holding memory that another half-loaded one needs."""
        for found in seating.found:  # all of them, before anything is taken for the rest
            self.pool.touch_all(entry for entry in found if entry >= 0)
        loaded: dict[int, int] = {}
        for seq, found, (other, count) in zip(
            group.sequences, seating.found, seating.shared, strict=True
        ):
            table = group.sequences[other].table[:count]
            self.pool.touch_all(table)
            table.extend(entry if entry >= 0 else self._load(~entry, loaded) for entry in found)
            self._start(seq, table, seating, (other, count), found)
        for seq in group.sequences:
            self.tier.discard(seq)

    def _start(
        self,
        seq: Sequence,
        table: array[int],
        seating: Seating,
        shared: tuple[int, int],
        found: list[int],
    ) -> None:
        other, count = shared
        start = seq.saved or len(table) * self.block_size
        missing = self.blocks_for(len(seq.tokens)) - len(table)
        table.extend(self.pool.take_many(missing))
        seq.table = table
        if self._reservation.active:
            seq.reserved = self.pool.take_many(self._reservation.blocks(seq) - len(seq.table))
        seq.granted = seq.computed = start
        seq.published = count
        pool_names = self.pool.names
        for entry in found:
            if entry < 0 or pool_names[entry] is None:
                break
            seq.published += 1
        if count:
            seq.holds = seq.group.sequences[other], count * self.block_size
        for name in seq.hashes(self.block_size)[seq.published :]:
            self.claims.setdefault(name, seq)

    def _load(self, host_block: int, loaded: dict[int, int]) -> int:
        """A device block with the content of a host block, one for all of the group."""
        block = loaded.get(host_block)
        if block is not None:
            self.pool.touch(block)
            return block
        block = loaded[host_block] = self.pool.take()
        self.moves.swap_in.append((host_block, block))
        self.host.pin(host_block)  # and let go again: not to be overwritten in this step
        self.host.unpin(host_block)
        return block

    def _find_prefix(self, seq: Sequence, skip: int, *, waiting: bool) -> list[int] | None:
        """Entries for `Seating.found` from block `skip` on; None, where `waiting` is allowed, if
        the block after them is being computed by another."""
        seq.waits_for = None
        if seq.wants_prompt_logprobs():
            return []
        names = seq.hashes(self.block_size)[skip : (len(seq.tokens) - 1) // self.block_size]
        found = self.pool.find_first(names)
        for name in names[len(found) :]:
            block = self.pool.find(name)
            if block is None:
                if waiting and name in self.claims:
                    seq.waits_for = self._last_claimed(names[len(found) :])
                    return None
                host_block = self.host.find(name)
                if host_block is None:
                    break
                block = ~host_block
            found.append(block)
        return found

    def _last_claimed(self, names: list[bytes]) -> bytes:
        """Of blocks the first of which is being computed, the last that is, with none missing
        between them: to wait for the first alone would mean to look again after each step."""
        last = names[0]
        for name in names:
            if name in self.claims:
                last = name
            elif self.pool.find(name) is None:
                break
        return last

    def _find_saved(self, seq: Sequence) -> list[int]:
        """A swapped sequence's content: still on the device, or on the host, but all of it."""
        found = []
        for place, host_block in enumerate(seq.host_table):
            block = None
            if (place + 1) * self.block_size <= seq.saved:
                block = self.pool.find(seq.hashes(self.block_size)[place])
            found.append(~host_block if block is None else block)
        return found

    def _common_prefix(self, earlier: dict[bytes, int], seq: Sequence) -> tuple[int, int]:
        """The sequence seated before that has most full blocks in common, and how many. Blocks
        that both must still compute are shared like those that are found."""
        owner, common = 0, 0
        if earlier:  # a name stands for all that comes before it too
            bound = (len(seq.tokens) - 1) // self.block_size
            for name in seq.hashes(self.block_size)[:bound]:
                if name not in earlier:
                    break
                owner = earlier[name]
                common += 1
        return owner, common

    def _count(self, group: Group, seating: Seating) -> None:
        """Free blocks that the seating takes: new ones, ones to load into, ones to revive."""
        references = self.pool.references
        revived, loaded, missing = set(), set(), 0
        for seq, found, (_, count) in zip(
            group.sequences, seating.found, seating.shared, strict=True
        ):
            for entry in found:
                if entry < 0:
                    loaded.add(entry)
                elif references[entry] == 0:
                    revived.add(entry)
            missing += self.blocks_for(len(seq.tokens)) - len(found) - count
        seating.device_blocks = len(revived) + len(loaded) + missing

    # Growing and sharing

    def blocks_needed(self, group: Group, ready: list[Sequence]) -> int | None:
        """Free blocks that it takes for each of `ready` to write one token more; None where each of
        them has the slot already."""
        if group.only is not None:
            seq = group.only
            if seq.granted % self.block_size or seq.granted < len(seq.table) * self.block_size:
                return None
            return 0 if seq.reserved else 1
        needed, writers = 0, dict[int, int]()
        for seq in ready:
            place = seq.granted // self.block_size
            if place == len(seq.table):
                needed += 1
            elif self.pool.references[seq.table[place]] > 1:
                writers[seq.table[place]] = writers.get(seq.table[place], 0) + 1
        for block, count in writers.items():  # the last holder of a block writes in place
            needed += min(count, self.pool.references[block] - 1)
        return needed or None

    def append_block(self, seq: Sequence) -> int:
        """One block more, which there must be."""
        block = seq.reserved.pop() if seq.reserved else self.pool.take()
        seq.table.append(block)
        return block

    def open_block(self, seq: Sequence) -> int | None:
        """Makes the block of the next token writable: the place of one that was added or replaced,
        or None where the sequence has it to itself already."""
        place = seq.granted // self.block_size
        if place == len(seq.table):
            self.append_block(seq)
            return place
        block = seq.table[place]
        if self.pool.references[block] == 1:
            return None
        copy = self.pool.take()
        self.pool.release((block,))
        seq.table[place] = copy
        self.moves.copy.append((block, copy))
        return place

    def fork(self, parent: Sequence, index: int) -> Sequence:
        """A sibling that holds the same blocks, on whichever tier they are."""
        twin = parent.fork(index)
        self.pool.touch_all(twin.table)
        for block in twin.host_table:
            self.host.pin(block)
        return twin

    def publish(self, seq: Sequence, computed: int) -> None:
        """Makes those blocks findable that confirmed steps have filled: so many tokens of the
        sequence are computed."""
        chain = seq.hashes(self.block_size)
        full = computed // self.block_size
        for place in range(seq.published, full):
            block, name = seq.table[place], chain[place]
            if self.pool.publish(block, name):
                self.tier.published(block)
            self._release_claim(seq, name)
        seq.published = full

    # Giving back

    def vacate(self, seq: Sequence) -> None:
        """Takes all device blocks from a sequence; what it published stays findable while room
        lasts."""
        self.pool.release(reversed(seq.table))
        self.pool.release(seq.reserved)
        for name in seq.chain[seq.published :]:
            self._release_claim(seq, name)
        seq.table, seq.reserved, seq.holds = array("I"), [], None
        seq.granted = seq.computed = seq.published = 0

    def trim(self, seq: Sequence) -> None:
        """Gives back blocks beyond the known tokens, which a forgotten step had asked for."""
        needed = self.blocks_for(len(seq.tokens))
        self.pool.release(reversed(seq.table[needed:]))
        del seq.table[needed:]

    def gives_back(self, group: Group) -> bool:
        """Whether taking this group's blocks would free any: those that others share stay."""
        references = self.pool.references
        if len(group.sequences) == 1:
            table = group.sequences[0].table
            return any(references[block] == 1 for block in reversed(table))  # the tail is its own
        held = Counter(block for seq in group.sequences for block in seq.table)
        return any(references[block] == count for block, count in held.items())

    def undo(self, lost: Moves, groups: list[Group]) -> list[Group]:
        """Takes back memory operations that never came to pass. Returns the running groups whose
        tables rely on them: they must start again."""
        self.tier.undo(lost, groups)
        unwritten = {target for _, target in [*lost.swap_in, *lost.copy]}
        broken = []
        for group in groups:
            unborn = len(group.sequences) > 1 and any(not seq.generated for seq in group.sequences)
            relies = any(not unwritten.isdisjoint(seq.table) for seq in group.sequences)
            if group.running and (unborn or relies):
                broken.append(group)
        return broken

    def reset(self) -> None:
        """Forgets all content that nobody is using, on both tiers."""
        self.pool.reset()
        self.tier.reset()

    def _release_claim(self, seq: Sequence, name: bytes) -> None:
        if self.claims.get(name) is seq:
            del self.claims[name]
