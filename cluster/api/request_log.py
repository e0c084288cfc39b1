"""One line for each request that the engine gets, its prompt included: only where that was asked
for (`--enable-log-requests`). No other line of Octavo's has anything of a prompt."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import astuple

from octavo.cluster.api.job import Job
from octavo.scheduler.sampling import SamplingParams

MOST_CHARACTERS = 2048  # of a prompt

_log = logging.getLogger("octavo.requests")


def log_requests(say: Callable[[str], None]) -> None:
    """Has each line said."""
    _log.setLevel(logging.INFO)
    _log.propagate = False
    _log.handlers = [_Sayer(say)]


def log_request(request_id: str, job: Job) -> None:
    """`request_id` is the one that the client sees in its headers; it may not be unique. Of the
    sampling parameters, those are shown that are not as usual."""
    fields = zip(job.sampling.__struct_fields__, astuple(job.sampling), strict=True)
    usual = dict(zip(SamplingParams.__struct_fields__, astuple(SamplingParams()), strict=True))
    asked = ", ".join(f"{name}={value!r}" for name, value in fields if value != usual[name])
    for request, prompt in zip(job.requests, job.prompts, strict=True):
        shown = repr(prompt.text if prompt.text is not None else prompt.tokens)
        if len(shown) > MOST_CHARACTERS:
            shown = f"{shown[:MOST_CHARACTERS]}... ({len(shown)} characters)"
        _log.info(
            "request %s (%s): %d tokens: %s; %s",
            request_id,
            request.id,
            len(prompt.tokens),
            shown,
            asked,
        )


class _Sayer(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())
