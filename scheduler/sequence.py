"""The scheduler's own, mutable view of one token stream."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from octavo.scheduler.hashing import extend_chain
from octavo.scheduler.request import Finish, Logprob

if TYPE_CHECKING:
    from octavo.scheduler.group import Group
    from octavo.scheduler.lane import Lane


class Sequence:
    """Tokens known and tokens computed; a step closes the gap. There are no phases.

    `tokens` are known; `pending` more are being sampled by steps in flight. `granted` tokens were
    handed to the workers to compute, `computed` of them are confirmed by a result. While it is in
    the `lane`, all four lie there; whoever looks at them or changes them here takes it out.

    A swapped sequence has no table, but a `host_table` with the content of its first `saved`
    tokens. One whose table shares blocks that a sibling is yet to compute `holds` until the sibling
    has been granted so many tokens.

    Tokens and blocks lie in arrays, 4 bytes each. As objects they were most of the memory of a
    scheduler, and the few numbers that change in each step were strewn among them.
    """

    __slots__ = (
        "_computed",
        "_granted",
        "_pending",
        "_tokens",
        "chain",
        "finish",
        "group",
        "holds",
        "host_table",
        "index",
        "lane",
        "limit",
        "prompt_len",
        "prompt_logprobs",
        "published",
        "reserved",
        "row",
        "saved",
        "stop",
        "table",
        "waits_for",
    )

    def __init__(
        self, group: Group, index: int, prompt: list[int], given: list[int] | None = None
    ) -> None:
        """`given` is what another engine generated, and delivered, of a request to be resumed."""
        sampling = group.request.sampling
        assert sampling.max_tokens is not None and sampling.seed is not None
        self.group = group
        self.index = index  # which sample it is
        self.lane: Lane | None = None
        self._tokens = array("I", prompt)
        self._tokens.extend(given or ())
        self.prompt_len = len(prompt)
        self.limit = self.prompt_len + sampling.max_tokens
        self.stop = group.stop
        self._pending = 0
        self._granted = 0
        self._computed = 0
        self.row: int | None = None
        self.table = array("I")
        self.reserved: list[int] = []  # blocks held for growth, where allocation is not paged
        self.host_table: list[int] = []
        self.saved = 0
        self.holds: tuple[Sequence, int] | None = None
        self.chain: list[bytes] = []
        self.published = 0  # blocks of the table, from its start, whose content is final
        self.waits_for: bytes | None = None
        self.prompt_logprobs: list[Logprob | None] | None = (
            None if sampling.prompt_logprobs is None or given is not None else [None]
        )
        self.finish: Finish | None = None

    def fork(self, index: int) -> Sequence:
        """A sibling that is so far the same, blocks included; the cache counts them."""
        self.leave_lane()
        twin = Sequence.__new__(Sequence)
        for name in Sequence.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.index, twin.row, twin.waits_for, twin.prompt_logprobs = index, None, None, None
        twin._tokens, twin.table = self._tokens[:], self.table[:]
        twin.host_table, twin.chain, twin.reserved = self.host_table.copy(), self.chain.copy(), []
        return twin

    def leave_lane(self) -> None:
        if self.lane is not None:
            self.lane.leave(self)

    def receive(self, tokens: array[int]) -> None:
        """Tokens that came while it was in the lane, each with the one before it computed."""
        self._tokens.extend(tokens)
        self._computed += len(tokens)

    def received(self) -> tuple[int, int]:
        """Tokens known and computed, as far as the lane has told."""
        return len(self._tokens), self._computed

    @property
    def tokens(self) -> array[int]:
        if self.lane is not None:
            self.lane.leave(self)
        return self._tokens

    @property
    def granted(self) -> int:
        if self.lane is not None:
            self.lane.leave(self)
        return self._granted

    @granted.setter
    def granted(self, count: int) -> None:
        if self.lane is not None:
            self.lane.leave(self)
        self._granted = count

    @property
    def computed(self) -> int:
        if self.lane is not None:
            self.lane.leave(self)
        return self._computed

    @computed.setter
    def computed(self, count: int) -> None:
        if self.lane is not None:
            self.lane.leave(self)
        self._computed = count

    @property
    def pending(self) -> int:
        if self.lane is not None:
            self.lane.leave(self)
        return self._pending

    @pending.setter
    def pending(self, count: int) -> None:
        if self.lane is not None:
            self.lane.leave(self)
        self._pending = count

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    def remaining(self) -> int:
        """Tokens that are known, or will be before the next step runs, and not yet granted. The
        last token of an answer is never computed: nothing follows it."""
        self.leave_lane()
        known = len(self._tokens) + self._pending
        return (known if known < self.limit or known == self.prompt_len else known - 1) - (
            self._granted
        )

    def is_held(self) -> bool:
        """Whether a sibling must first be granted what this one shares."""
        if self.holds is None:
            return False
        sibling, tokens = self.holds
        if sibling.row is None:
            return False  # it has come to its end before
        return sibling.granted < tokens or sibling.is_held()

    def restart(self) -> None:
        """Its blocks were taken: what was computed must be found or computed again."""
        if self.wants_prompt_logprobs():
            self.prompt_logprobs = [None]

    def wants_prompt_logprobs(self) -> bool:
        """Whether the prompt must be computed whole, without hits, to score its tokens."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    def take_prompt_logprobs(self, entries: list[Logprob]) -> None:
        """Entries of the next prompt tokens, in order."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs.extend(entries)
        assert len(self.prompt_logprobs) <= self.prompt_len

    def hashes(self, block_size: int) -> list[bytes]:
        """Names of all full blocks of the known tokens, computed once."""
        if self.lane is not None:
            self.lane.settle(self)
        if (len(self.chain) + 1) * block_size <= len(self._tokens):
            extend_chain(self.chain, self.group.root, self._tokens, block_size)
        return self.chain
