"""One request of a workload: how long, when, and what of its prompt others have too.

A prompt is a row of pieces, and pieces of one name begin with the same tokens wherever they are. So
a reader need not make tokens to say which prefixes are shared: a lone prompt is one piece of a name
of its own, a repeated prefix is a piece that several requests have, and the hash ids of a trace are
the names of pieces of one block each. Only whoever sends a prompt makes tokens of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Piece(NamedTuple):
    """`length` tokens, of which the name alone decides. Names are numbers where a trace has hash
    ids."""

    name: int | str
    length: int


@dataclass(frozen=True, slots=True)
class Request:
    """`arrival` is in seconds after the first request; None where the data have no times. A request
    with a `text` is sent as that text, and its pieces then say only how long it is, if that is
    known."""

    pieces: tuple[Piece, ...]
    output_len: int
    arrival: float | None = None
    text: str | None = None

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return sum(piece.length for piece in self.pieces)

    @property
    def hash_ids(self) -> tuple[int | str, ...]:
        """Names of the prompt's pieces: equal beginnings are equal prefixes."""
        return tuple(piece.name for piece in self.pieces)


def alone(
    lengths: Iterable[tuple[int, int]], arrivals: Sequence[float] | None = None
) -> Iterator[Request]:
    """Requests of (prompt tokens, answer tokens) that share nothing."""
    for number, (prompt, output) in enumerate(lengths):
        arrival = None if arrivals is None else arrivals[number]
        yield Request((Piece(f"prompt {number}", prompt),), output, arrival)
