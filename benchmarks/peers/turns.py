"""Rounds in which the sides take turns at one workload, and the table that comes of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from machine import probe, row
from peers.client import Figures
from peers.environments import say
from peers.workloads import Prompts, Workload, seed_of

BASELINE = "Octavo"


class Side(Protocol):
    """Something that answers: ready during its `turn`, idle outside of it."""

    @property
    def name(self) -> str: ...

    def turn(self) -> AbstractContextManager[None]: ...

    def measure(self, workload: Workload, prompts: Prompts) -> Figures: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """`speed` is the machine's, just before."""

    figures: Figures
    speed: str


Turns = dict[str, list[Turn]]


def take_turns(
    sides: Sequence[Side], workload: Workload, rounds: int, slow_rounds: int, threads: int
) -> Turns:
    """Each round begins with another side, so that none always follows the same one."""
    turns: Turns = {side.name: [] for side in sides}
    for number in range(rounds):
        prompts = workload.prompts(seed_of(workload, number))
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            if side.name in workload.slow and number >= slow_rounds:
                continue
            with side.turn():
                turn = Turn(speed=probe(threads), figures=side.measure(workload, prompts))
            turns[side.name].append(turn)
            rate = f"{turn.figures.rate:.0f} tok/s ({turn.speed})"
            say(f"{workload.key}, round {number + 1}: {side.name} {rate}")
    return {name: all_ for name, all_ in turns.items() if all_}


def table(workload: Workload, turns: Turns) -> str:
    """Markdown. Each ratio is the baseline's median over that of the row."""
    measures = [("output tok/s", _rate, 1.0)]
    if all(turn.figures.first for all_ in turns.values() for turn in all_):
        measures += [("mean TTFT, ms", _first, 1e3), ("mean TPOT, ms", _each, 1e3)]
        if workload.in_flight == 1:
            measures.append(("tok/s after the first token", _decoding, 1.0))
    columns = [column for title, *_ in measures for column in (title, "Octavo / side")]
    columns = ["side", *columns, "probes"]
    lines = [f"### {workload.title}", "", row(*columns), row(*["---"] * len(columns))]
    for name, all_ in turns.items():
        cells = [cell for _, get, scale in measures for cell in _cells(turns, name, get, scale)]
        lines.append(row(name, *cells, "; ".join(turn.speed for turn in all_)))
    lines += ["", "Medians; in brackets all values, in the order of the rounds.", ""]
    return "\n".join(lines)


def _cells(
    turns: Turns, name: str, get: Callable[[Figures], float], scale: float
) -> tuple[str, str]:
    """Median and all values of one side; the baseline's median over its median."""
    values = [get(turn.figures) * scale for turn in turns[name]]
    median = statistics.median(values)
    digits = 1 if median < 100 else 0
    all_ = ", ".join(f"{value:,.{digits}f}" for value in values)
    ratio = "–"
    if name != BASELINE and BASELINE in turns:
        baseline = statistics.median(get(turn.figures) * scale for turn in turns[BASELINE])
        ratio = f"{baseline / median:.2f}"
    return f"{median:,.{digits}f} ({all_})", ratio


def _rate(figures: Figures) -> float:
    return figures.rate


def _first(figures: Figures) -> float:
    assert figures.first is not None
    return figures.first


def _each(figures: Figures) -> float:
    assert figures.each is not None
    return figures.each


def _decoding(figures: Figures) -> float:
    return 1 / _each(figures)
