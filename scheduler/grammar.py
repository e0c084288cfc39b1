"""What an answer must be a sentence of. Travels in `SamplingParams` to rank 0, which chooses tokens
by it.

Where a stream stands in its grammar is a function of the grammar and the tokens generated so far,
and of nothing else: so no plan, fork, preemption or failover carries more than this. Knows no
grammar library.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.scheduler.errors import InvalidRequest

MAX_GRAMMAR_CHARS = 2**17


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """`text` is a JSON schema, a regular expression (Rust's syntax, of the whole answer), or a
    grammar in llguidance's variant of Lark. With a `frame`, a grammar in Lark too, the answer is a
    sentence of that, and a sentence of `text` wherever it has `@answer`. Raises `InvalidRequest`
    where it is empty or larger than `MAX_GRAMMAR_CHARS`; whether it is one, the front finds out."""

    kind: Literal["json", "regex", "lark"]
    text: str
    frame: str = ""

    def __post_init__(self) -> None:
        if not self.text:
            raise InvalidRequest("grammar", "grammar must not be empty")
        longest = max(len(self.text), len(self.frame))
        if longest > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                "grammar",
                f"grammar may have at most {MAX_GRAMMAR_CHARS} characters, got {longest}",
            )
