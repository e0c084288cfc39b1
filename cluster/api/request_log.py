"""One line for each request that the engine gets, its prompt included: only where that was asked
for (`--enable-log-requests`). No other line of Octavo's has anything of a prompt."""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.cluster.api.job import Job

MOST_CHARACTERS = 2048  # of a prompt

_log = logging.getLogger("octavo.requests")


def log_requests(say: Callable[[str], None]) -> None:
    """Has each line said."""
    _log.setLevel(logging.INFO)
    _log.propagate = False
    _log.handlers = [_Sayer(say)]


def log_request(request_id: str, job: Job) -> None:
    """`request_id` is the one that the client sees in its headers; it may not be unique."""
    for request, prompt in zip(job.requests, job.prompts, strict=True):
        shown = repr(prompt.text if prompt.text is not None else prompt.tokens)
        if len(shown) > MOST_CHARACTERS:
            shown = f"{shown[:MOST_CHARACTERS]}... ({len(shown)} characters)"
        _log.info(
            "request %s (%s): %d tokens: %s, %r",
            request_id,
            request.id,
            len(prompt.tokens),
            shown,
            job.sampling,
        )


class _Sayer(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())
