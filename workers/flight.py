"""What is known of a step between its begin and its end.

The tokens that it chooses stay on the device, where `octavo.workers.latest` keeps them for the next
step; in the rows on the host they are `PENDING` until they have landed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from octavo.scheduler.mirror import Row
from octavo.scheduler.plan import StepPlan, StepResult
from octavo.workers.batch import PENDING
from octavo.workers.upload import Mark

FAULT = "the model gave no finite logits for this request (NaN or infinity)"


class Chosen:
    """Tokens that the device has chosen, or is about to, and their copy for the host. `ids` is
    int64 `[n]`; `unfit`, bool `[n]`, are those that were chosen from faulty logits, if that is
    known here."""

    def __init__(self, ids: Tensor, unfit: Tensor | None) -> None:
        both = torch.stack((ids, ids.new_zeros(len(ids)) if unfit is None else unfit.to(ids.dtype)))
        self._host = both
        if both.device.type != "cpu":
            self._host = torch.empty(both.shape, dtype=both.dtype, pin_memory=True)
            self._host.copy_(both, non_blocking=True)

    def land(self) -> tuple[list[int], list[int]]:
        """The tokens, and which of them mean nothing. The copy must be done."""
        ids, unfit = self._host.tolist()
        return ids, [place for place, bad in enumerate(unfit) if bad]


@dataclass(slots=True)
class Flight:
    """A step under way. `result` lacks what `chosen` is to bring: the tokens of `drawing`, which
    are the indices of their Works. `end` lies behind all of the step but its stores. Landed, it
    knows for how many `seconds` it was the step that computed."""

    plan: StepPlan
    result: StepResult
    chosen: Chosen | None
    drawing: list[int]
    end: Mark
    began: float
    seconds: float | None = None
    _waiting: list[tuple[Row, int]] = field(default_factory=list)

    def done(self) -> bool:
        return self.seconds is not None or self.end.done()

    def wait(self) -> None:
        if self.seconds is None:
            self.end.wait()

    def await_tokens(self, rows: Mapping[int, Row]) -> None:
        """Notes where in the rows the tokens belong, whose places have been taken for them."""
        for index in self.drawing:
            row = rows[self.plan.work[index].row]
            at = len(row.tokens) - 1
            assert row.tokens[at] == PENDING, "a token was put where one is awaited"
            self._waiting.append((row, at))

    def land(self, seconds: float) -> None:
        """Puts the tokens in their places, and in the result. The step must be done."""
        self.seconds = seconds
        if self.chosen is None:
            return
        tokens, unfit = self.chosen.land()
        for (row, at), token in zip(self._waiting, tokens, strict=True):
            row.tokens[at] = token
        errors = self.result.errors | {self.drawing[place]: FAULT for place in unfit}
        self.result = msgspec.structs.replace(
            self.result, tokens=tokens, errors={at: errors[at] for at in sorted(errors)}
        )
