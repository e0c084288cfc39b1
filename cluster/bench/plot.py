"""A picture of a run. Needs matplotlib, which comes with the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.measure import Measured, in_flight, per_second, series
from octavo.cluster.bench.names import METRICS
from octavo.cluster.bench.report import check_folder
from octavo.scheduler.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f6feb", "#d97706", "#059669")
UNITS = {"ms": "milliseconds", "s": "seconds"}
FAINT = "#d0d7de"
SHARES = np.linspace(0, 100, 201)


def check_plot(path: str) -> None:
    """Raises `InvalidRequest` where no such picture could be drawn, before anything is run."""
    if not path.endswith(".png"):
        raise InvalidRequest("plot", f"plot must be the name of a .png file, got {path!r}")
    check_folder(Path(path).parent, "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "plot", "--plot needs matplotlib: pip install 'octavo[bench]', or leave --plot away"
        ) from None


def draw(path: str, answers: Sequence[Answer], measured: Measured, what: str) -> None:
    """Writes a PNG without any text in its metadata: tokens a second and requests in flight over
    time, and how latencies are spread. `what` was measured, in a few words."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    good = [answer for answer in answers if not answer.error]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(2, 2)
    figure.suptitle(
        f"{what}\n{measured.completed} answers, {measured.failed} failed: "
        f"{measured.output_throughput:,.0f} output tokens/s, "
        f"{measured.request_throughput:.2f} requests/s"
    )
    for each in axes.flat:
        each.grid(color=FAINT, linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    _over_time(axes[0][0], good)
    _prompt_against_ttft(axes[0][1], good)
    _spread(axes[1][0], good, ("tpot", "itl"), "ms", "Time a token, after the first")
    _spread(axes[1][1], good, ("ttft", "e2el"), "s", "Time to the first and to the last token")
    try:
        figure.savefig(path, dpi=110, metadata={"Software": None})
    except OSError as error:
        raise InvalidRequest("plot", f"cannot write {path}: {error.strerror}") from None


def _over_time(axes: Axes, answers: Sequence[Answer]) -> None:
    from matplotlib.ticker import MaxNLocator

    tokens = per_second(answers)
    axes.step(range(len(tokens)), tokens, where="post", color=COLOURS[0])
    axes.set(
        xlabel="seconds after the first request",
        ylabel="output tokens in each second",
        title="Throughput and load",
        xlim=(0, None),
        ylim=(0, None),
    )
    axes.yaxis.label.set_color(COLOURS[0])
    times, counts = in_flight(answers)
    beside = axes.twinx()
    beside.step(times, counts, where="post", color=COLOURS[1], linewidth=0.9)
    beside.set(ylabel="requests in flight", ylim=(0, None))
    beside.yaxis.label.set_color(COLOURS[1])
    beside.yaxis.set_major_locator(MaxNLocator(integer=True))
    beside.spines["top"].set_visible(False)


def _prompt_against_ttft(axes: Axes, answers: Sequence[Answer]) -> None:
    lengths = [answer.prompt_len for answer in answers]
    firsts = [answer.ttft for answer in answers]
    axes.scatter(lengths, firsts, s=16, alpha=0.6, color=COLOURS[2], linewidths=0)
    axes.set(
        xlabel="tokens of the prompt",
        ylabel="seconds to the first token",
        title="First token by length of the prompt: one point a request",
        xlim=(0, None),
        ylim=(0, None),
    )


def _spread(
    axes: Axes, answers: Sequence[Answer], names: Sequence[str], unit: str, title: str
) -> None:
    scale = 1e3 if unit == "ms" else 1.0
    for name, colour in zip(names, COLOURS, strict=False):
        values = series(answers, name)
        if values:
            median = f"{np.median(values) * scale:,.3g} {unit}"
            label = f"{METRICS[name][0]}: median {median}"
            axes.plot(SHARES, np.percentile(values, SHARES) * scale, label=label, color=colour)
    axes.set(xlabel="percentile", ylabel=UNITS[unit], title=title, xlim=(0, 100), ylim=(0, None))
    if answers:
        axes.legend(frameon=False, loc="upper left")
