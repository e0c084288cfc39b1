"""Follows rows through their grammars and names what may come next. Belongs to one thread."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

from octavo.scheduler.errors import STRAYED, InvalidRequest
from octavo.scheduler.grammar import Grammar
from octavo.scheduler.mirror import Row
from octavo.workers.grammar import compile_grammar, first_line
from octavo.workers.vocabulary import Vocabulary

log = logging.getLogger("octavo.workers")

KEPT_GRAMMARS = 64  # compiled ones, each up to some megabytes

Bits = npt.NDArray[np.int32]
"""`[rows, words]`: bit t of a row says whether token t may come next."""


class Stand:
    """How far a row was followed: through `followed` of its generated tokens. It has `ended` behind
    an end token, as it does for one step more where that was planned before."""

    __slots__ = ("ended", "error", "followed", "matcher", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.matcher: llguidance.LLMatcher | None = None
        self.followed = 0
        self.ended = False
        self.error: str | None = None

    @property
    def grammar(self) -> Grammar:
        assert self.row.sampling.grammar is not None
        return self.row.sampling.grammar


class Matching:
    """Streams of one grammar share what the library learns of it, and wait for each other; so there
    are `threads` of a kind, to be used side by side."""

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        self.vocabulary = vocabulary
        self._threads = threads
        self._executor = llguidance.LLExecutor(num_threads=threads)
        self._compiled: OrderedDict[tuple[Grammar, int], llguidance.LLMatcher] = OrderedDict()
        self._started = 0

    def find(self, stands: Sequence[Stand]) -> Bits:
        """The next tokens of each row; nothing that has a meaning for those that are in error."""
        bits = np.zeros((len(stands), self.vocabulary.words), np.int32)
        for stand in stands:
            if stand.matcher is None and stand.error is None:
                self._start(stand)
        self._fill(stands, bits)
        for at, stand in enumerate(stands):
            if stand.matcher is not None and stand.matcher.is_error():
                self._fill_anew(stand, bits[at : at + 1])
            if stand.error is None:
                _permit_ends(bits[at], stand, self.vocabulary.end)
        return bits

    def _start(self, stand: Stand, slot: int | None = None) -> None:
        """Copies a matcher, and compiles one where the `slot` is empty."""
        if slot is None:
            self._started += 1
            slot = self._started % self._threads
        key = stand.grammar, slot
        master = self._compiled.pop(key, None)
        if master is None:
            try:
                master = compile_grammar(stand.grammar, self.vocabulary)
            except InvalidRequest as error:
                stand.error = f"{STRAYED}: {error.message}"
                return
        self._compiled[key] = master  # the one used last is the last
        if len(self._compiled) > KEPT_GRAMMARS:
            self._compiled.popitem(last=False)
        stand.matcher = master.deep_copy()

    def _fill(self, stands: Sequence[Stand], bits: Bits) -> None:
        """Masks for those that are neither at an end nor in error."""
        found = []
        for at, stand in enumerate(stands):
            if stand.matcher is not None and _follow(stand, stand.matcher):
                found.append((stand.matcher, at))
        if found:
            llguidance.numpy.fill_next_token_bitmask_par(self._executor, found, bits)

    def _fill_anew(self, stand: Stand, bits: Bits) -> None:
        """What many streams taught the library of a grammar may have reached its bounds: forgets
        that, and follows the row from its start. What fails again is in error."""
        for slot in range(self._threads):
            self._compiled.pop((stand.grammar, slot), None)
        stand.followed = 0
        self._start(stand, slot=0)
        if stand.matcher is None:
            return
        self._fill([stand], bits)
        if stand.matcher.is_error():
            stand.error = f"{STRAYED}: {first_line(stand.matcher.get_error())}"
            log.warning("after %d tokens, %s", stand.followed, stand.error)
            stand.matcher = None


def _follow(stand: Stand, matcher: llguidance.LLMatcher) -> bool:
    """Through the row's new tokens. Says whether there is more to match."""
    row = stand.row
    new = row.tokens[row.prompt_len + stand.followed :]
    stand.followed += len(new)
    ends = row.sampling.stop_token_ids
    inside = next((at for at, token in enumerate(new) if token in ends), len(new))
    stand.ended |= inside < len(new)
    matched = not inside or matcher.consume_tokens(new[:inside])
    return matched and not stand.ended


def _permit_ends(mask: npt.NDArray[np.int32], stand: Stand, end: int) -> None:
    """Puts the row's stop tokens for the token `end`, which stands for them all.

    Neither `min_tokens` nor `ignore_eos` makes an answer go on behind its grammar's end.
    """
    sampling = stand.row.sampling
    bits = mask.view(np.uint32)
    may_end = stand.ended or _has(bits, end)
    _clear(bits, [end])
    stops = [token for token in sampling.stop_token_ids if 0 <= token < end]
    early = len(stand.row.tokens) - stand.row.prompt_len < sampling.min_tokens
    if early:
        without = bits.copy()
        _clear(without, stops)
        if without.any():
            bits[:] = without
    if may_end and (not (early or sampling.ignore_eos) or not bits.any()):
        for token in stops:
            bits[token // 32] |= np.uint32(1 << token % 32)


def _has(bits: npt.NDArray[np.uint32], token: int) -> bool:
    return bool(bits[token // 32] >> np.uint32(token % 32) & np.uint32(1))


def _clear(bits: npt.NDArray[np.uint32], tokens: Sequence[int]) -> None:
    for token in tokens:
        bits[token // 32] &= ~np.uint32(1 << token % 32)
