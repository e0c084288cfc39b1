"""Tries the grammars that clients send, before an engine sees any.

A grammar is made ready here exactly as a worker will do it (`octavo.workers.grammar`), with the
same vocabulary and the same bounds; a bad one, or one that takes too long, ends here. That happens
on a thread, one at a time, so that a server that is sent nothing but large grammars still streams.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import llguidance
import numpy as np

from octavo.cluster.text.tokens import Tokenizer
from octavo.scheduler.errors import InvalidRequest, QueueFull
from octavo.scheduler.grammar import Grammar
from octavo.workers.grammar import compile_grammar, first_line
from octavo.workers.vocabulary import Vocabulary

REMEMBERED = 256
LONGEST_SECONDS = 2.0  # to make one ready: a hundred times what those take that people write
PATIENCE_SECONDS = 20.0  # for its turn and its trial
STEPS = 16  # tried of each: what is too wide shows in the first few
ANYTHING = Grammar("json", "{}")


class Grammars:
    """Those of one model. What was tried once is known from then on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-grammar")
        self._vocabulary: Vocabulary | None = None  # made for the first one, by the thread
        self._known: OrderedDict[Grammar, str | None] = OrderedDict()

    def warm_up(self) -> None:
        """Has the vocabulary made ready, so that the first grammar need not wait for it. Returns at
        once."""
        self._thread.submit(self._reason, ANYTHING)

    async def check(self, param: str, grammar: Grammar) -> Grammar:
        """The same grammar, if it is one. Raises `InvalidRequest` with what is wrong with the
        client's `param`, and `QueueFull` where too many others are tried."""
        if grammar not in self._known:
            trial = asyncio.get_running_loop().run_in_executor(self._thread, self._try, grammar)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await trial
            except TimeoutError:
                raise QueueFull("too many new grammars are tried just now; try again") from None
        return self.check_now(param, grammar)

    def check_now(self, param: str, grammar: Grammar) -> Grammar:
        """See `check`; does not let others run meanwhile."""
        reason = self._known[grammar] if grammar in self._known else self._try(grammar)
        if reason is not None:
            raise InvalidRequest(param, f"{param} cannot be followed: {reason}")
        return grammar

    def _try(self, grammar: Grammar) -> str | None:
        """What is wrong with it, which is remembered."""
        reason = self._known[grammar] = self._reason(grammar)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return reason

    def _reason(self, grammar: Grammar) -> str | None:
        if not self._tokenizer.eos_ids:
            return "this model has no token to end an answer with"
        try:
            if self._vocabulary is None:
                self._vocabulary = self._tokenizer.vocabulary()
            began = time.perf_counter()
            matcher = compile_grammar(grammar, self._vocabulary)
        except InvalidRequest as error:
            return error.message
        _walk(matcher)
        if matcher.is_error():
            return first_line(matcher.get_error())
        seconds = time.perf_counter() - began
        if seconds > LONGEST_SECONDS:
            return f"it takes {seconds:.1f} s to prepare, at most {LONGEST_SECONDS} are given"
        return None


def _walk(matcher: llguidance.LLMatcher) -> None:
    """A few steps, at each the token in the middle of those that may come. Leaves the matcher in
    error where one cannot be taken within the bounds."""
    for _ in range(STEPS):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        tokens = np.unpackbits(bits, bitorder="little").nonzero()[0]
        if matcher.is_error() or matcher.is_stopped():
            return
        matcher.consume_token(int(tokens[(len(tokens) - 1) // 2]))
