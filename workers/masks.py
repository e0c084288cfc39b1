"""Which tokens the grammars of a step's rows let through, found while the model runs.

    begin ──▶ a thread: follow each row to its last token, find what may come next ──▶ forbid
      └───────────── the model computes the step's logits meanwhile ─────────────────────┘

Where a row stands in its grammar is a function of the tokens it has generated. What is held here
between steps only saves following it from the start: rows come and go by any way, as new ones, by
forks, resumptions and resynchronisations, and none needs more than its tokens.

Rank 0 alone chooses tokens, so it alone holds masks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.mirror import Row
from octavo.workers.forbidding import Forbidding
from octavo.workers.matching import Matching, Stand
from octavo.workers.vocabulary import Vocabulary

log = logging.getLogger("octavo.workers")

INTERNAL = "the masks of grammars failed on an internal error"

Found = tuple[Forbidding | None, dict[int, str]]
"""What to do to a step's logits, and why that is not known for some of its rows."""


class Masks:
    """`load` reads the model's vocabulary, once, when it is first needed or with `warm_up`.
    `threads` may find masks side by side."""

    def __init__(self, load: Callable[[], Vocabulary], threads: int = 1) -> None:
        self._load = load
        self._threads = threads
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-grammar")
        self._stands: dict[int, Stand] = {}
        self._under_way: Future[Found] | None = None
        self._matching: Matching | None = None  # the thread's own

    def warm_up(self) -> None:
        """Has the vocabulary read, so that the first grammar finds it. Returns at once."""
        self._thread.submit(self._warm_up)

    def close(self) -> None:
        """Ends the thread, once what it is at is done."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, numbers: Sequence[int], rows: Mapping[int, Row]) -> None:
        """Starts to find what may follow the tokens of each of the rows `numbers`, which are those
        that the step chooses a token for, in this order. They must not change before `forbid`."""
        for number in [n for n, stand in self._stands.items() if rows.get(n) is not stand.row]:
            del self._stands[number]
        places, stands = [], []
        for place, number in enumerate(numbers):
            if rows[number].sampling.grammar is None:
                continue
            stand = self._stands.get(number)
            if stand is None:
                stand = self._stands[number] = Stand(rows[number])
            places.append(place)
            stands.append(stand)
        self._under_way = None
        if stands:
            self._under_way = self._thread.submit(self._find, places, stands)

    def forbid(self, logits: Tensor) -> dict[int, str]:
        """Makes everything else `-inf` in `[rows, vocabulary]` logits of any dtype, whose rows are
        those of `begin`. Returns why, for each of the rows that could not be followed; their logits
        are as they were."""
        found, self._under_way = self._under_way, None
        if found is None:
            return {}
        forbidding, errors = found.result()
        if forbidding is not None:
            forbidding.apply(logits)
        return errors

    def _warm_up(self) -> None:
        try:
            self._ready()
        except Exception as error:  # whoever brings a grammar is told
            log.info("no grammar can be followed: %s", error)

    def _ready(self) -> Matching:
        if self._matching is None:
            self._matching = Matching(self._load(), self._threads)
        return self._matching

    def _find(self, places: Sequence[int], stands: Sequence[Stand]) -> Found:
        """What to do to the logits' rows at `places`, and the errors. Whatever goes wrong, rows
        without a grammar go on."""
        try:
            matching = self._ready()
            bits = matching.find(stands)
            errors = {
                place: stand.error
                for place, stand in zip(places, stands, strict=True)
                if stand.error is not None
            }
            masks = [each for each in zip(places, bits, strict=True) if each[0] not in errors]
            return Forbidding.of(masks, matching.vocabulary.end), errors
        except InvalidRequest as error:
            reason = error.message
        except Exception:
            log.exception("grammars could not be followed")
            reason = INTERNAL
        return None, dict.fromkeys(places, reason)
