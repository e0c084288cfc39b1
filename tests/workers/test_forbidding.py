"""What is done to logits, against a pass over all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.workers.forbidding import Forbidding

VOCABULARY = 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_rows_lose_what_their_masks_bar(dtype: torch.dtype) -> None:
    draw = np.random.default_rng(3)
    shares = [0.0, 0.01, 0.4, 0.5, 0.6, 0.99, 1.0]
    allowed = np.stack([draw.random(VOCABULARY + 24) < share for share in shares])
    masks = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    whole = torch.randn(10, VOCABULARY + 40).to(dtype)
    logits = whole[:, :VOCABULARY]  # padded, as several ranks give them
    places = [8, 2, 0, 5, 3, 9, 4]
    expected = whole.clone()
    for place, bits in zip(places, allowed, strict=True):
        barred = ~torch.from_numpy(bits)[:VOCABULARY]
        expected[place, :VOCABULARY][barred] = float("-inf")
    Forbidding.of(zip(places, masks, strict=True), VOCABULARY).apply(logits)
    assert torch.equal(whole, expected)


def test_no_rows_lose_nothing() -> None:
    logits = torch.randn(3, VOCABULARY)
    before = logits.clone()
    Forbidding.of([], VOCABULARY).apply(logits)
    assert torch.equal(logits, before)
