"""Requests that could never run, or not now: refused before anything of them is kept."""

from __future__ import annotations

from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.errors import InvalidRequest, NeverFits
from octavo.scheduler.request import Request


def refuse_impossible(request: Request, config: SchedulerConfig, capacity: Capacity) -> None:
    """Raises `InvalidRequest` or `NeverFits`, with the numbers."""
    sampling, size = request.sampling, len(request.prompt)
    assert sampling.max_tokens is not None, "the front resolves max_tokens"
    if not request.prompt:
        raise InvalidRequest("prompt", "the prompt has no tokens; send at least one")
    if request.adapter and request.adapter not in config.adapters:
        known = ", ".join(config.adapters) or "none"
        raise InvalidRequest(
            "model", f"there is no adapter {request.adapter!r} here; adapters are: {known}"
        )
    total = size + sampling.max_tokens
    for bound, what in (
        (config.max_model_len, "the model's context"),
        (capacity.tokens, "the whole KV cache"),
    ):
        if total > bound:
            raise NeverFits(
                "max_tokens",
                f"{what} holds {bound} tokens, but the prompt has {size} and max_tokens is "
                f"{sampling.max_tokens}, together {total}: shorten one of them",
            )
    if sampling.width > 1:
        _refuse_width(request, config, capacity)
    if request.resumed:
        _refuse_resumption(request, request.resumed, sampling.max_tokens)


def _refuse_width(request: Request, config: SchedulerConfig, capacity: Capacity) -> None:
    """Each sample or beam takes a row, and blocks of its own behind those of the prompt. What is
    reserved at admission is for one."""
    sampling, size, block = request.sampling, len(request.prompt), capacity.block_size
    assert sampling.max_tokens is not None
    name, kind = ("n", "samples") if sampling.beam_width is None else ("beam_width", "beams")
    if config.allocation != "paged":
        raise InvalidRequest(
            name,
            f"{sampling.width} {kind} share memory, which is not possible with --allocation "
            f"{config.allocation}: ask for one, or serve with --allocation paged",
        )
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if sampling.width > rows:
        raise NeverFits(
            name,
            f"{sampling.width} {kind} cannot run side by side: {rows} sequences can "
            f"(max_num_seqs {config.max_num_seqs}, max_num_batched_tokens "
            f"{config.max_num_batched_tokens}); ask for fewer",
        )
    shared = size // block
    blocks = shared + sampling.width * (-(-(size + sampling.max_tokens) // block) - shared)
    if blocks > capacity.usable_blocks:
        raise NeverFits(
            name,
            f"{sampling.width} {kind} of a prompt of {size} tokens with max_tokens "
            f"{sampling.max_tokens} may need {blocks} blocks of {block} tokens, but the whole KV "
            f"cache has {capacity.usable_blocks}: ask for fewer, or for shorter ones",
        )


def _refuse_resumption(request: Request, resumed: list[list[int] | None], max_tokens: int) -> None:
    """Only what a live request may have given can be gone on from."""
    sampling, live = request.sampling, request.live_samples
    given = [resumed[index] or [] for index in live]
    possible = sampling.beam_width is None and len(resumed) == sampling.n and live
    stop = frozenset(sampling.stop_token_ids)
    ended = any(len(each) >= max_tokens or not stop.isdisjoint(each) for each in given)
    if not possible or ended:
        lengths = [None if each is None else len(each) for each in resumed]
        raise InvalidRequest(
            "resumed",
            f"resumed has samples of {lengths} tokens, which no live request with n "
            f"{sampling.n} and max_tokens {max_tokens} has given: send what was given, and None "
            "for each sample that has ended",
        )
