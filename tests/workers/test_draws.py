"""Counter-based random numbers: exact, even, and unrelated between seeds and positions."""

from __future__ import annotations

import numpy as np

from octavo.workers.draws import uniforms

MASK = 2**64 - 1


def in_plain_integers(seed: int, position: int) -> float:
    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    bits = mix((mix(seed & MASK) + (position + 1) * 0x9E3779B97F4A7C15) & MASK)
    return (bits >> 11) / 2**53


def test_the_documented_formula_exactly():
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 12345]
    for position in (0, 1, 7, 131071):
        expected = [in_plain_integers(seed, position) for seed in seeds]
        assert uniforms(seeds, [position] * len(seeds)).tolist() == expected
    # SplitMix64's published first output for the seed 0, whose mixed state is 0 too
    assert uniforms([0], [0])[0] == (0xE220A8397B1DCDAF >> 11) / 2**53


def test_draws_fill_the_interval_evenly_along_seeds_and_positions():
    n = 20000
    by_position = uniforms([5] * n, range(n))
    by_seed = uniforms(range(n), [5] * n)
    for draws in (by_position, by_seed):
        assert 0 <= draws.min() < 0.001
        assert 0.999 < draws.max() < 1
        counts, _ = np.histogram(draws, bins=50, range=(0, 1))
        assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 85  # 0.1 % point of chi-square, 49
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 0.03
    assert abs(np.corrcoef(by_position[1:], by_position[:-1])[0, 1]) < 0.03
