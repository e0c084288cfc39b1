"""From the flags of `octavo bench` to the requests that are sent."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from octavo.cluster.bench.arrivals import RampUp, arrivals
from octavo.cluster.bench.datasets.synthetic import prefix_repetition, random_requests
from octavo.cluster.bench.datasets.texts import Count, Wrap, read_custom, read_sharegpt
from octavo.cluster.bench.names import HAVE_TIMES, KEEP_TIMES, SHUFFLED
from octavo.cluster.traces.lengths import Length, drawn, first_turns, read_lengths, usable
from octavo.cluster.traces.recorded import (
    MILLISECONDS,
    MOONCAKE_BLOCK,
    in_order,
    read_azure,
    read_burstgpt,
    read_timed,
)
from octavo.cluster.traces.request import Request, alone
from octavo.scheduler.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.cluster.text.tokens import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Texts:
    """What can be done with texts here."""

    count: Count | None
    wrap: Wrap | None


def requests_of(
    arguments: argparse.Namespace, tokenizer: Tokenizer | None, *, chat: bool
) -> list[Request]:
    """As many as `--num-prompts` says, or fewer where a trace has fewer. A `chat` has its template
    put around texts by the server. Raises `InvalidRequest` naming the flag at fault."""
    wanted = arguments.num_prompts
    if wanted < 1:
        raise InvalidRequest("num_prompts", f"num_prompts must be at least 1, got {wanted}")
    for flag in ("input_len", "output_len", "sharegpt_output_len"):
        length = getattr(arguments, flag)
        if length is not None and length < 1:
            raise InvalidRequest(flag, f"{flag} must be at least 1, got {length}")
    name = arguments.dataset_name
    found = READERS[name](arguments, _texts(arguments, tokenizer, chat))
    if name not in SHUFFLED:
        requests = list(itertools.islice(found, wanted))
    else:
        requests = list(found)
        if not arguments.disable_shuffle:
            random.Random(f"order, {arguments.seed}").shuffle(requests)
        if requests and len(requests) < wanted and not arguments.no_oversample:
            requests = list(itertools.islice(itertools.cycle(requests), wanted))
        del requests[wanted:]
    if not requests:
        raise InvalidRequest(
            "dataset_path", f"{arguments.dataset_path} has no request that can be sent"
        )
    return requests


def times_of(arguments: argparse.Namespace, requests: list[Request]) -> list[float]:
    """Seconds after the start at which each request is sent; the requests are in that order."""
    if not self_timed(arguments):
        return arrivals(
            len(requests),
            arguments.request_rate,
            burstiness=arguments.burstiness,
            ramp_up=_ramp_up(arguments),
            seed=arguments.seed,
        )
    if not arguments.trace_speed > 0:
        raise InvalidRequest(
            "trace_speed", f"trace_speed must be above 0, got {arguments.trace_speed:g}"
        )
    first = requests[0].arrival or 0.0
    return [((each.arrival or 0.0) - first) / arguments.trace_speed for each in requests]


def self_timed(arguments: argparse.Namespace) -> bool:
    """Whether requests are sent at the times of the trace. Raises `InvalidRequest` where it has
    none."""
    name = arguments.dataset_name
    if arguments.self_timed and name not in HAVE_TIMES:
        raise InvalidRequest(
            "self_timed", f"--self-timed needs a dataset with times: {', '.join(HAVE_TIMES)}"
        )
    if arguments.self_timed is not None:
        return bool(arguments.self_timed)
    rate_given = arguments.request_rate != float("inf") or arguments.ramp_up_strategy is not None
    return name in KEEP_TIMES and not rate_given


def _ramp_up(arguments: argparse.Namespace) -> RampUp | None:
    if arguments.ramp_up_strategy is None:
        return None
    ends = arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
    if None in ends:
        raise InvalidRequest(
            "ramp_up_strategy", "ramp_up_strategy needs --ramp-up-start-rps and --ramp-up-end-rps"
        )
    return RampUp(arguments.ramp_up_strategy, *ends)


def _texts(arguments: argparse.Namespace, tokenizer: Tokenizer | None, chat: bool) -> Texts:
    if tokenizer is None:
        return Texts(None, None)
    known = tokenizer

    def wrap(text: str) -> str:
        return known.render_chat([{"role": "user", "content": text}])

    wraps = known.has_chat_template and not chat and not arguments.skip_chat_template
    return Texts(lambda text: len(known.encode(text)), wrap if wraps else None)


def _path(arguments: argparse.Namespace) -> Path:
    if arguments.dataset_path is None:
        raise InvalidRequest(
            "dataset_path", f"dataset {arguments.dataset_name} needs a file: give --dataset-path"
        )
    return Path(arguments.dataset_path).expanduser()


def _random(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    ratios = _ratios(arguments.random_range_ratio)
    return random_requests(
        arguments.num_prompts,
        _given(arguments.input_len, arguments.random_input_len),
        _given(arguments.output_len, arguments.random_output_len),
        input_ratio=ratios[0],
        output_ratio=ratios[1],
        prefix_len=arguments.random_prefix_len,
        seed=arguments.seed,
    )


def _prefix_repetition(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    return prefix_repetition(
        arguments.num_prompts,
        prefix_len=arguments.prefix_repetition_prefix_len,
        suffix_len=arguments.prefix_repetition_suffix_len,
        num_prefixes=arguments.prefix_repetition_num_prefixes,
        output_len=_given(arguments.output_len, arguments.prefix_repetition_output_len),
    )


def _sharegpt(arguments: argparse.Namespace, texts: Texts) -> Iterator[Request]:
    output_len = arguments.output_len or arguments.sharegpt_output_len
    turns: Iterator[Length]
    if arguments.dataset_path is None:
        turns = itertools.islice(drawn("sharegpt", arguments.seed), 8 * arguments.num_prompts)
    else:
        path = _path(arguments)
        if path.suffix == ".json":
            if texts.count is None:
                raise InvalidRequest(
                    "tokenizer",
                    f"to count the tokens of {path.name}, name the model's tokenizer with "
                    "--tokenizer",
                )
            order = random.Random(f"order, {arguments.seed}")
            shuffle = None if arguments.disable_shuffle else order
            entries = read_sharegpt(path, output_len, texts.count, shuffle)
            return itertools.islice(entries, arguments.num_prompts)
        turns = first_turns(read_lengths(path))
    return alone(
        (prompt, output_len or output)
        for prompt, output in turns
        if usable(prompt, output_len or output, output_len is not None)
    )


def _lengths(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    turns = read_lengths(_path(arguments))
    return alone((prompt, arguments.output_len or output) for prompt, output in turns)


def _custom(arguments: argparse.Namespace, texts: Texts) -> Iterator[Request]:
    given = _given(arguments.output_len, arguments.custom_output_len)
    return read_custom(_path(arguments), None if given == -1 else given, texts.count, texts.wrap)


def _azure(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    return _in_order(read_azure(_path(arguments)), arguments)


def _burstgpt(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    return _in_order(read_burstgpt(_path(arguments)), arguments)


def _mooncake(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    block = _given(arguments.timed_trace_chunk_hash_size, MOONCAKE_BLOCK)
    unit = _given(arguments.timed_trace_sec_multiplier, MILLISECONDS)
    return _in_order(read_timed(_path(arguments), block, unit), arguments)


def _timed_trace(arguments: argparse.Namespace, _: Texts) -> Iterator[Request]:
    block = _given(arguments.timed_trace_chunk_hash_size, 16)
    unit = _given(arguments.timed_trace_sec_multiplier, 1.0)
    return _in_order(read_timed(_path(arguments), block, unit), arguments)


def _in_order(requests: Iterator[Request], arguments: argparse.Namespace) -> Iterator[Request]:
    """The first ones of a trace, by time, with another length of answers where one is asked for."""
    for each in in_order(requests, arguments.num_prompts):
        if arguments.output_len:
            each = dataclasses.replace(each, output_len=arguments.output_len)
        yield each


def _ratios(given: str) -> tuple[float, float]:
    """For prompts and for answers."""
    try:
        found = json.loads(given)
        if isinstance(found, dict):
            return float(found["input"]), float(found["output"])
        return float(found), float(found)
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(
            "random_range_ratio",
            "random_range_ratio must be a number, or JSON such as "
            f'{{"input": 0.3, "output": 0.5}}, got {given!r}',
        ) from None


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


READERS: dict[str, Callable[[argparse.Namespace, Texts], Iterator[Request]]] = {
    "random": _random,
    "prefix_repetition": _prefix_repetition,
    "sharegpt": _sharegpt,
    "lengths": _lengths,
    "custom": _custom,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
    "timed_trace": _timed_trace,
}
