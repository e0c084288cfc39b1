"""When requests are sent: a rate, how evenly they come, and a rate that grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from octavo.scheduler.errors import InvalidRequest

Growth: TypeAlias = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class RampUp:
    """The rate grows from the first request to the last; rates in requests a second."""

    strategy: Growth
    start: float
    end: float

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if not 0 < value < math.inf:
                raise InvalidRequest(
                    f"ramp_up_{name}_rps", f"ramp_up_{name}_rps must be above 0, got {value:g}"
                )

    def rates(self, count: int) -> np.ndarray:
        """One for each request."""
        share = np.arange(count) / max(1, count - 1)
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * share
        return np.asarray(self.start * (self.end / self.start) ** share)


def arrivals(
    count: int,
    rate: float,
    *,
    burstiness: float = 1.0,
    ramp_up: RampUp | None = None,
    seed: int = 0,
) -> list[float]:
    """Seconds after the start for each of `count` requests.

    Gaps are drawn from a gamma distribution of shape `burstiness`: 1 is a Poisson process, less
    comes in bursts, more comes evenly, infinite is a clock. As in vLLM, a constant rate is met
    exactly: the last request comes after `count / rate` seconds. An infinite rate sends all at
    once.
    """
    if not rate > 0:
        raise InvalidRequest("request_rate", f"request_rate must be above 0, got {rate:g}")
    if not burstiness > 0:
        raise InvalidRequest("burstiness", f"burstiness must be above 0, got {burstiness:g}")
    if ramp_up is None and math.isinf(rate):
        return [0.0] * count
    rates = np.full(count, rate) if ramp_up is None else ramp_up.rates(count)
    if math.isinf(burstiness):
        gaps = 1 / rates
    else:
        gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rates * burstiness))
    times = np.cumsum(gaps)
    if ramp_up is None and count:
        times *= count / rate / times[-1]
    found: list[float] = times.tolist()
    return found
