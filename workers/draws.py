"""Random numbers by counting: the draw of a token depends on its seed and position alone.

So a preempted, re-batched, replayed or moved request draws what it would have drawn undisturbed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_UINT64 = 2**64 - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair of a 64-bit seed and a token's index in its stream.

    SplitMix64 (Steele, Lea, Flood 2014): the stream of a seed starts at the state `mix(seed)` and
    its n-th output is `mix(state + (n + 1) * golden)`, all modulo 2**64; the top 53 bits make the
    number. Mixing the seed first keeps the streams of neighbouring seeds apart. Exact integers
    throughout: every machine draws the same.
    """
    state = _mix(np.array([seed & _UINT64 for seed in seeds], np.uint64))
    steps = np.array(positions, np.uint64) + np.uint64(1)
    bits = _mix(state + steps * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
