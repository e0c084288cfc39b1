"""What a client got for one call, streamed or whole, in one form that two runs can be compared by.

Left out is what may differ between two right answers: ids, times, and how much of the prompt was
found in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CLOSE = 1e-3  # log-probabilities: what another order of the same sums changes
Scored = tuple[str, float | None, Mapping[str, float]]
"""A token's text, its log-probability, and those of the likeliest by their text or bytes."""
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass
class Choice:
    """`logprobs` has an entry a token."""

    text: str = ""
    finish: str | None = None
    logprobs: list[Scored] = field(default_factory=list)


@dataclass
class Answer:
    """Put together piece by piece. `faults` are breaches of the protocol."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, ...] = ()
    done: bool = False
    faults: list[str] = field(default_factory=list)

    def take(self, piece: Mapping[str, Any]) -> None:
        """A chunk of a stream, or the whole answer."""
        if self.usage:
            self.faults.append("a chunk after the usage")
        for part in piece["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            if choice.finish is not None:
                self.faults.append(f"choice {part['index']} goes on after its end")
            words = part.get("delta") or part.get("message") or part
            choice.text += words.get("text") or words.get("content") or ""
            choice.finish = part["finish_reason"]
            choice.logprobs += _logprobs(part.get("logprobs"))
        if (usage := piece.get("usage")) is not None:
            self.usage = tuple(usage[name] for name in _COUNTS)
            if usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"]:
                self.faults.append("every token of the prompt was found in a cache")

    def differs(self, right: Answer) -> str | None:
        """In what it is not the right answer, or None."""
        if self.faults:
            return self.faults[0]
        if self.choices.keys() != right.choices.keys():
            return f"choices {sorted(self.choices)}, not {sorted(right.choices)}"
        for index, choice in self.choices.items():
            other = right.choices[index]
            if choice.text != other.text:
                return f"choice {index}: {_where(choice.text, other.text)}"
            if choice.finish != other.finish:
                return f"choice {index} ended by {choice.finish}, not by {other.finish}"
            if (what := _logprobs_differ(choice, other)) is not None:
                return f"choice {index}: {what}"
            if len(choice.logprobs) != len(other.logprobs):
                return f"choice {index}: {len(choice.logprobs)} log-probabilities"
        if self.usage != right.usage:
            return f"usage {self.usage}, not {right.usage}"
        return None

    def strays(self, right: Answer) -> str | None:
        """In what it is not the beginning of the right answer, or None."""
        if self.faults:
            return self.faults[0]
        for index, choice in self.choices.items():
            other = right.choices.get(index, Choice())
            if not other.text.startswith(choice.text):
                return f"choice {index}: {_where(choice.text, other.text)}"
            if (what := _logprobs_differ(choice, other)) is not None:
                return f"choice {index}: {what}"
        return None


def _logprobs(
    part: Mapping[str, Any] | None,
) -> list[tuple[str, float | None, Mapping[str, float]]]:
    if part is None:
        return []
    if "content" in part:
        return [
            (
                each["token"],
                each["logprob"],
                {str(top["bytes"]): top["logprob"] for top in each["top_logprobs"]},
            )
            for each in part["content"]
        ]
    tops = [top or {} for top in part["top_logprobs"]]
    return list(zip(part["tokens"], part["token_logprobs"], tops, strict=True))


def _logprobs_differ(choice: Choice, other: Choice) -> str | None:
    """As far as both go."""
    for number, (mine, its) in enumerate(zip(choice.logprobs, other.logprobs, strict=False)):
        if mine[0] != its[0]:
            return f"token {number} is {mine[0]!r}, not {its[0]!r}"
        values = [(mine[1], its[1]), *((value, its[2].get(key)) for key, value in mine[2].items())]
        for value, expected in values:
            if value is None or expected is None:
                if value is not expected:
                    return f"token {number}: {value} in place of {expected}"
            elif not math.isclose(value, expected, abs_tol=CLOSE, rel_tol=CLOSE):
                return f"the log-probability of token {number} is {value}, not {expected}"
    return None


def _where(text: str, right: str) -> str:
    pairs = enumerate(zip(text, right, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(text), len(right)))
    return (
        f"after {first} characters {text[first : first + 20]!r} in place of "
        f"{right[first : first + 20]!r}"
    )
