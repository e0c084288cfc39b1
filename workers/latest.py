"""Each row's latest token on the device, from where the next step takes it before the host knows.

So a step can be begun while the one before still computes what the new one is about to read.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo.workers.batch import Arrays
from octavo.workers.upload import upload


class Latest:
    """int32 by row number. Rows that were never stored hold nothing of meaning."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tokens = torch.zeros(0, dtype=torch.int32, device=device)

    def store(self, rows: list[int], ids: Tensor) -> None:
        """Keeps `ids`, int64 `[n]`, for these rows."""
        if (need := max(rows) + 1) > len(self._tokens):
            missing = max(need, 2 * len(self._tokens)) - len(self._tokens)
            self._tokens = torch.cat((self._tokens, self._tokens.new_zeros(missing)))
        (numbers,) = upload([np.array(rows, np.int64)], self._device)
        self._tokens.index_copy_(0, numbers, ids.to(torch.int32))

    def fill(self, ids: Tensor, step: Arrays) -> None:
        """Puts the tokens that `step` waits for in their places in `ids`, int32."""
        if len(step.pending):
            places, owners = upload(
                [step.pending.astype(np.int64), step.owners.astype(np.int64)], self._device
            )
            ids.index_copy_(0, places, self._tokens.index_select(0, owners))
