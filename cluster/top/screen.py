"""The picture of a server in a terminal: pools, queues, rates, replicas, requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from octavo.cluster.top.figures import Figures, Quantiles, RankFigures
from octavo.scheduler.glance import RequestLine

NARROWEST = 60
ROOM_FOR_STEPS = 80
_LEAST_REQUESTS = 3
# Told apart by their shapes too, for eyes and terminals without colours.
_STATES = {
    "private": ("█", "green"),
    "held": ("█", "green"),
    "shared": ("▓", "magenta"),
    "cached": ("▒", "cyan"),
    "free": ("·", "bright_black"),
}
_WARN = "bold yellow"


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model with all its replicas together, and each."""

    name: str
    whole: Figures
    replicas: Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Requests:
    """Those of all replicas that can be seen, or why there are none."""

    lines: Sequence[tuple[str, RequestLine]]  # with the replica's name
    why: str = ""


def draw(
    url: str, when: str, models: Sequence[ModelView], requests: Requests, width: int, height: int
) -> RenderableType:
    """`when` says of which moment it is. Of requests as many as there is room for, at least a
    few."""
    width = max(NARROWEST, width)
    replicas = sum(len(model.replicas) for model in models)
    title = Text.assemble(("octavo top  ", "bold"), plain(url))
    right = Text(f"{_number(replicas, 'replica')}, {when}", "bright_black")
    parts: list[RenderableType] = [_ends(title, right, width)]
    if not models:
        parts.append(Text("\nNo replica is up.", _WARN))
    for model in models:
        parts += _model(model, width)
    used = 2 + sum(_height(model) for model in models)
    parts += _requests(requests, max(_LEAST_REQUESTS, height - used - 3), width)
    return Group(*parts)


def _model(model: ModelView, width: int) -> list[RenderableType]:
    whole = model.whole
    parts: list[RenderableType] = [
        Rule(Text(plain(model.name), "bold"), align="left", style="blue")
    ]
    parts.append(_queues(whole))
    parts.append(_bar("device", whole.device, width))
    if sum(whole.host.values()):
        parts.append(_bar("host", whole.host, width))
    parts.append(_rates(whole))
    if whole.ranks:
        parts.append(_ranks(whole.ranks, len(model.replicas) > 1))
    if len(model.replicas) > 1:
        parts.append(Padding(_replicas(model.replicas, width), (1, 0, 0, 0)))
    return parts


def _height(model: ModelView) -> int:
    replicas = len(model.replicas) + 2 if len(model.replicas) > 1 else 0
    tiers = 1 + bool(sum(model.whole.host.values()))
    return 3 + 2 * tiers + 4 + bool(model.whole.ranks) + replicas


def _queues(whole: Figures) -> Text:
    text = Text.assemble(("running ", "bold"), f"{whole.running}   ", ("waiting ", "bold"))
    text.append(str(whole.waiting))
    if whole.waiting:
        text.append(
            f", the longest {_seconds(whole.queue_age)}", _WARN if whole.queue_age > 10 else ""
        )
    if whole.swapped:
        text.append(f"   on the host {whole.swapped}")
    if whole.step_age > 5:
        text.append(f"   a step has taken {_seconds(whole.step_age)}", _WARN)
    return text


def _bar(name: str, blocks: Mapping[str, int], width: int) -> Text:
    total = sum(blocks.values())
    cells = width - 8
    text = Text(f"{name:7} ", "bold")
    for state, count in _apportion(blocks, cells).items():
        sign, colour = _STATES[state]
        text.append(sign * count, colour)
    text.append("\n" + 8 * " ")
    for state, count in blocks.items():
        sign, colour = _STATES[state]
        text.append(f"{sign} ", colour)
        text.append(f"{state} {count:,}  ")
    return text.append(f"of {total:,}", "bright_black")


def _apportion(blocks: Mapping[str, int], cells: int) -> dict[str, int]:
    """Cells by largest remainders, and one at least for what there is any of."""
    total = sum(blocks.values())
    if not total:
        return dict.fromkeys(blocks, 0)
    exact = {state: count * cells / total for state, count in blocks.items()}
    given = {state: max(int(share), int(blocks[state] > 0)) for state, share in exact.items()}
    while (off := cells - sum(given.values())) != 0:
        sign = 1 if off > 0 else -1
        able = [state for state, count in given.items() if off > 0 or count > 1]
        given[max(able, key=lambda state: (exact[state] - given[state]) * sign)] += sign
    return given


def _rates(whole: Figures) -> RenderableType:
    grid = Table.grid(padding=(0, 3))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    hits = "-" if whole.hit_rate is None else f"{whole.hit_rate:.0%}"
    grid.add_row(
        _pair("tokens/s", _rate(whole.generated)),
        _pair("of prompts", f"{_rate(whole.computed)}, found {_rate(whole.found)} ({hits})"),
    )
    grid.add_row(
        _pair("first token", _quantiles(whole.first_token)),
        _pair("between tokens", _quantiles(whole.between_tokens)),
    )
    grid.add_row(
        _pair("requests/s", _rate(whole.finished)),
        _pair("steps/s", f"{_rate(whole.steps)} of {_rate(whole.step_tokens)} tokens"),
    )
    grid.add_row(
        _pair("cache held", _figure(whole.usage, whole.usage, 0.97, percent=True)),
        _pair("preemptions a request", _figure(whole.preemptions, whole.preemptions or 0, 0.5)),
    )
    return grid


def _ranks(ranks: Sequence[RankFigures], several: bool) -> Text:
    """One line: what steps take on each rank, and the share of it that goes to the others."""
    text = Text("step by rank " if len(ranks) > 1 else "step ", "bold", no_wrap=True)
    text.overflow = "ellipsis"
    for each in ranks:
        text.append(f"{each.rank}: " if len(ranks) > 1 else "", "bright_black")
        text.append(_seconds(each.step), "")
        text.append(f" {each.exchanging:.0%}" if each.exchanging else "", "bright_black")
        text.append("  ")
    if any(each.exchanging for each in ranks):
        text.append("(exchanging with the others)", "bright_black")
    elif several:
        text.append("(mean of the replicas)", "bright_black")
    return text


def _replicas(replicas: Mapping[str, Figures], width: int) -> Table:
    """With the step of the slowest rank, where there is room."""
    names = ["replica", "run", "wait", "held", "tokens/s", "first token", "preempt", "hits"]
    table = _table(*names, *["step"] * (width >= ROOM_FOR_STEPS))
    for name, each in replicas.items():
        step = _seconds(max(rank.step for rank in each.ranks)) if each.ranks else "-"
        table.add_row(
            plain(name),
            str(each.running),
            str(each.waiting),
            f"{each.usage:.0%}",
            _rate(each.generated),
            "-" if each.first_token is None else _seconds(each.first_token[0]),
            "-" if each.preemptions is None else f"{each.preemptions:.2f}",
            "-" if each.hit_rate is None else f"{each.hit_rate:.0%}",
            *[step] * (width >= ROOM_FOR_STEPS),
        )
    return table


def _requests(requests: Requests, room: int, width: int) -> list[RenderableType]:
    if requests.why:
        return [Text(f"\n{plain(requests.why)}", "bright_black")]
    table = _table("request", "state", "prompt", "found", "new", "blocks", "preempt", "age")
    for _, line in requests.lines[:room]:
        blocks = str(line.blocks or line.host_blocks)
        table.add_row(
            plain(line.id)[-max(8, width - 56) :],
            line.state,
            str(line.prompt),
            str(line.cached),
            str(line.generated),
            blocks,
            str(line.preemptions),
            _seconds(line.age),
        )
    parts: list[RenderableType] = [Padding(table, (1, 0, 0, 0))]
    if len(requests.lines) > room:
        parts.append(Text(f"and {len(requests.lines) - room} more", "bright_black"))
    return parts


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True, overflow="ellipsis", ratio=1)
    for name in others:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    return table


def _ends(left: Text, right: Text, width: int) -> Text:
    gap = width - left.cell_len - right.cell_len
    return left.append(" " * gap if gap > 0 else "\n").append_text(right)


def _pair(name: str, value: str | Text) -> Text:
    return Text.assemble((f"{name} ", "bold"), value)


def _figure(value: float | None, measure: float, limit: float, *, percent: bool = False) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.0%}" if percent else f"{value:.2f}", _WARN if measure > limit else "")


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _quantiles(found: Quantiles | None) -> str:
    return "-" if found is None else f"{_seconds(found[0])}, 95 % {_seconds(found[1])}"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.{int(value < 0.01)}f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def plain(text: str) -> str:
    """Without what would move a terminal's cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)
