"""Made-up requests: random lengths around a mean, and prefixes that are repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from octavo.cluster.traces.request import Piece, Request
from octavo.scheduler.errors import InvalidRequest


def random_requests(
    count: int,
    input_len: int,
    output_len: int,
    *,
    input_ratio: float = 0.0,
    output_ratio: float = 0.0,
    prefix_len: int = 0,
    seed: int = 0,
) -> Iterator[Request]:
    """Lengths are even over a ratio around the given ones. All prompts begin with the same
    `prefix_len` tokens, which come on top."""
    for name, ratio in (("input", input_ratio), ("output", output_ratio)):
        if not 0 <= ratio < 1:
            raise InvalidRequest(
                "random_range_ratio",
                f"random_range_ratio must be at least 0 and below 1, got {ratio:g} for {name}",
            )
    for name, length in (("input", input_len), ("output", output_len)):
        if length < 1:
            raise InvalidRequest(
                f"random_{name}_len", f"random_{name}_len must be at least 1, got {length}"
            )
    if prefix_len < 0:
        raise InvalidRequest(
            "random_prefix_len", f"random_prefix_len must be at least 0, got {prefix_len}"
        )
    source = random.Random(f"random lengths, {seed}")
    prefix = (Piece("prefix", prefix_len),) if prefix_len else ()
    for number in range(count):
        prompt = _around(input_len, input_ratio, source)
        output = _around(output_len, output_ratio, source)
        yield Request((*prefix, Piece(f"prompt {number}", prompt)), output)


def prefix_repetition(
    count: int,
    *,
    prefix_len: int = 256,
    suffix_len: int = 256,
    num_prefixes: int = 10,
    output_len: int = 128,
) -> Iterator[Request]:
    """`count // num_prefixes` requests on each prefix, one prefix after the other."""
    lengths = {
        "prefix_len": prefix_len,
        "suffix_len": suffix_len,
        "num_prefixes": num_prefixes,
        "output_len": output_len,
    }
    for name, value in lengths.items():
        if value < 1:
            name = f"prefix_repetition_{name}"
            raise InvalidRequest(name, f"{name} must be at least 1, got {value}")
    if count < num_prefixes:
        raise InvalidRequest(
            "num_prompts",
            f"num_prompts must be at least the {num_prefixes} prefixes, got {count}; set fewer "
            "--prefix-repetition-num-prefixes",
        )
    for prefix in range(num_prefixes):
        for number in range(count // num_prefixes):
            own = Piece(f"suffix {prefix}, {number}", suffix_len)
            yield Request((Piece(f"prefix {prefix}", prefix_len), own), output_len)


def _around(mean: int, ratio: float, source: random.Random) -> int:
    least, most = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
    return max(1, source.randint(least, most))
