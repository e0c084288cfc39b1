"""Recorded requests as jobs of a simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from octavo.cluster.simulation.workload import Job
from octavo.cluster.traces.files import wrong
from octavo.cluster.traces.lengths import Length
from octavo.cluster.traces.recorded import in_order, read_any
from octavo.cluster.traces.request import Request


class Trace:
    """`jobs` in the order of arrival; all at 0 where the file has no times."""

    def __init__(self, jobs: list[Job], timed: bool) -> None:
        self.jobs = jobs
        self.timed = timed

    @property
    def lengths(self) -> list[Length]:
        return [(job.prompt, job.answer) for job in self.jobs]


def read_trace(path: Path, most: int | None = None, block: int | None = None) -> Trace:
    """The first `most` requests that have a prompt and an answer, of a file that `read_any` takes.
    Raises `InvalidRequest` with what is wrong in it."""
    requests = in_order(read_any(path, block), most)
    if not requests:
        raise wrong(f"{path}: no request in it has a prompt and an answer")
    return Trace(_jobs(requests), timed=requests[0].arrival is not None)


def _jobs(requests: Sequence[Request]) -> list[Job]:
    """Pieces at the end of a prompt that are in no other are the job's own. Names become numbers,
    as they may be of any size, or text."""
    uses = Counter(piece.name for each in requests for piece in each.pieces)
    numbers: dict[int | str, int] = {}
    start = requests[0].arrival or 0.0
    jobs = []
    for number, request in enumerate(requests):
        shared = list(request.pieces)
        while shared and uses[shared[-1].name] == 1:
            shared.pop()
        pieces = tuple(
            (numbers.setdefault(piece.name, len(numbers)), piece.length) for piece in shared
        )
        at = (request.arrival or 0.0) - start
        jobs.append(Job(number, at, request.prompt_len, request.output_len, pieces))
    return jobs
