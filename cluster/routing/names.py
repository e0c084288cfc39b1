"""The names of a request's blocks, as its replica's cache will call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.scheduler.digest import short_names
from octavo.scheduler.hashing import extend_chain, root_hash
from octavo.scheduler.request import Request

MOST_BLOCKS = 2048  # a request is told from others by so many; more would keep the front waiting


def names_of(request: Request) -> Callable[[str, int], list[int]] | None:
    """For `Routing.route`. None where the prompt is computed whole, whatever is cached."""
    if request.sampling.prompt_logprobs is not None and not request.resumed:
        return None
    return partial(_names, request)


def _names(request: Request, scope: str, block_size: int) -> list[int]:
    chain: list[bytes] = []
    prompt = request.prompt[: MOST_BLOCKS * block_size]
    root = root_hash(scope, request.adapter, request.salt)  # as `Scheduler.add` has it
    extend_chain(chain, root, prompt, block_size)
    return short_names(chain)
