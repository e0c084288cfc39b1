from __future__ import annotations

import importlib.metadata

import pytest

from octavo.workers.versions import installed, odd_rank

SAME = {"octavo": "1.2", "torch": "3.0"}


def test_what_is_installed_here_fits_itself():
    versions = installed()
    assert versions["octavo"] == importlib.metadata.version("octavo")
    assert "+" not in versions["torch"], "how torch was built does not matter"
    assert odd_rank(versions, [versions, versions]) is None


@pytest.mark.parametrize(
    "ranks, expected",
    [
        ([SAME, SAME], None),
        ([SAME, {**SAME, "octavo": "1.1"}], (1, "runs octavo 1.1, and the scheduler 1.2")),
        ([SAME, {**SAME, "torch": "2.9"}], (1, "runs torch 2.9, and rank 0 3.0")),
        ([{**SAME, "torch": "2.9"}] * 2, None),
    ],
)
def test_the_rank_that_does_not_fit_is_found(ranks, expected):
    assert odd_rank(SAME, ranks) == expected
