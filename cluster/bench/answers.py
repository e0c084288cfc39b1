"""What came back for one request, and when. All times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Answer:
    """`sent` is on the clock of `time.perf_counter`; `ttft` and `latency` count from there to the
    first and to the last event that brought something, `itls` from each such event to the next.
    `waited` is how long it was held back by a bound on requests in flight. `error` is empty where
    all went well."""

    sent: float = 0.0
    waited: float = 0.0
    prompt_len: int = 0
    output_len: int = 0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""

    @property
    def tpot(self) -> float:
        """Mean time a token after the first; 0 for a single token."""
        after_first = self.output_len - 1
        return (self.latency - self.ttft) / after_first if after_first > 0 else 0.0
