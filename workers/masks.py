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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.mirror import Row
from octavo.workers.matching import Bits, Matching, Stand
from octavo.workers.vocabulary import Vocabulary

log = logging.getLogger("octavo.workers")

INTERNAL = "the masks of grammars failed on an internal error"


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The masks of a step, for the rows of its logits at `places`."""

    places: list[int]
    masks: Future[tuple[Bits, dict[int, str]]]


class Masks:
    """`load` reads the model's vocabulary, once, when it is first needed or with `warm_up`.
    `threads` may find masks side by side."""

    def __init__(self, load: Callable[[], Vocabulary], threads: int = 1) -> None:
        self._load = load
        self._threads = threads
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-grammar")
        self._stands: dict[int, Stand] = {}
        self._under_way: _UnderWay | None = None
        self._matching: Matching | None = None  # the thread's own

    def warm_up(self) -> None:
        """Has the vocabulary read, so that the first grammar finds it. Returns at once."""
        self._thread.submit(self._find, [])

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
            self._under_way = _UnderWay(places, self._thread.submit(self._find, stands))

    def forbid(self, logits: Tensor) -> dict[int, str]:
        """Makes everything else `-inf` in `[rows, vocabulary]` logits of any dtype, whose rows are
        those of `begin`. Returns why, for each of the rows that could not be followed; their logits
        are as they were."""
        step, self._under_way = self._under_way, None
        if step is None:
            return {}
        bits, errors = step.masks.result()
        kept = [at for at in range(len(step.places)) if at not in errors]
        if kept:
            if len(kept) < len(bits):
                bits = bits[kept]
            _forbid(logits, [step.places[at] for at in kept], torch.from_numpy(bits))
        return {step.places[at]: reason for at, reason in errors.items()}

    def _find(self, stands: Sequence[Stand]) -> tuple[Bits, dict[int, str]]:
        """See `Matching.find`. Whatever goes wrong, rows without a grammar go on."""
        try:
            if self._matching is None:
                self._matching = Matching(self._load(), self._threads)
            return self._matching.find(stands)
        except InvalidRequest as error:
            reason = error.message
        except Exception:
            log.exception("grammars could not be followed")
            reason = INTERNAL
        return np.zeros((0, 0), np.int32), dict.fromkeys(range(len(stands)), reason)


def _forbid(logits: Tensor, places: list[int], bits: Tensor) -> None:
    """`bits[i]`, int32, are those of `logits[places[i]]`."""
    bits = bits.to(logits.device, non_blocking=True)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    forbidden = (bits[:, :, None] >> shifts & 1 == 0).view(len(bits), -1)[:, : logits.shape[1]]
    if len(places) == len(logits):
        logits.masked_fill_(forbidden, float("-inf"))
    else:
        logits[places] = logits[places].masked_fill(forbidden, float("-inf"))
