"""`python -m tests.again`, after a run of tests with failures: the modules that these are of, once
more, one after another and with nothing beside them.

What fails there too is broken. What passes was disturbed by what ran beside it: it is named, to be
mended, and does not fail the run. Most tests have a server of several processes of their own, so
there is always one more way for a slow machine to be slow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")  # of the folder that tests are run in
MOST = 8  # more than so many were not disturbed: something is broken


def modules_of(failed: Iterable[str]) -> list[str]:
    """The files of these tests, each once. Tests of one may go on where the ones before stopped."""
    return list(dict.fromkeys(each.partition("::")[0] for each in failed))


def main() -> int:
    failed = list(json.loads(LAST_FAILED.read_text()))
    if len(failed) > MOST:
        print(f"{len(failed)} tests failed: they are not tried again, as more than {MOST} did")
        return 1
    print(
        f"Trying again, with nothing beside it, what has {len(failed)} failed test(s)", flush=True
    )
    code = int(pytest.main(["-p", "no:cacheprovider", *modules_of(failed)]))
    if not code:
        print("DISTURBED, for they pass alone:", *failed, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
