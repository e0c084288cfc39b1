"""`octavo top`: what a running server does, in the terminal."""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from octavo.cluster.top.figures import figures
from octavo.cluster.top.readings import Reading, Source
from octavo.cluster.top.screen import ModelView, Requests, draw, plain
from octavo.scheduler.errors import EngineDead, InvalidRequest

if TYPE_CHECKING:
    from octavo.scheduler.glance import RequestLine

WINDOW_SECONDS = 10.0  # that rates are of, unless the interval is longer
MOST_REPLICAS = 8  # whose requests are asked for


def top(arguments: argparse.Namespace, console: Console | None = None) -> None:
    """Until Ctrl-C, or once. Raises `InvalidRequest`, or `EngineDead` where no server answers at
    the start."""
    if not 0 < arguments.interval <= 3600:
        raise InvalidRequest(
            "interval",
            f"interval must be a number of seconds above 0, 3600 at most, got {arguments.interval}",
        )
    watch = _Watch(Source(arguments.url, arguments.admin_api_key), arguments.interval)
    console = console or Console()
    watch.look()
    if arguments.once or not console.is_terminal:
        time.sleep(arguments.interval)
        watch.look()
        console.print(watch.picture(console.width, 10**6))
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(watch.picture(console.width, console.height), refresh=True)
                time.sleep(arguments.interval)
                watch.try_to_look()
    except KeyboardInterrupt:
        return


class _Watch:
    """Readings of the last seconds, the oldest first."""

    def __init__(self, source: Source, interval: float) -> None:
        self._source = source
        self._window = max(WINDOW_SECONDS, interval)
        self._readings: deque[Reading] = deque()
        self._lost = ""
        self._requests = Requests([])

    def look(self) -> None:
        """Raises `EngineDead` where the server does not answer."""
        self._readings.append(self._source.read())
        self._lost = ""
        now = self._readings[-1].at
        while len(self._readings) > 2 and now - self._readings[0].at > self._window * 1.05:
            self._readings.popleft()

    def try_to_look(self) -> None:
        """What was seen last stays in sight while the server does not answer."""
        try:
            self.look()
        except EngineDead as error:
            self._lost = error.message

    def picture(self, width: int, height: int) -> RenderableType:
        now = self._readings[-1]
        before = self._readings[0] if len(self._readings) > 1 else None
        models: list[ModelView] = []
        for model in dict.fromkeys(model for model, _ in sorted(now.replicas)):
            keys = sorted(each for each in now.replicas if each[0] == model)
            each = {key[1]: figures(now, before, [key]) for key in keys}
            models.append(ModelView(model, figures(now, before, keys), each))
        seconds = 0.0 if before is None else now.at - before.at
        when = f"{time.strftime('%H:%M:%S')}, over {seconds:.3g} s"
        if not self._lost:
            self._requests = self._look_at_requests(sorted(now.replicas))
            return draw(self._source.url, when, models, self._requests, width, height)
        lost = Text(f"{plain(self._lost)}; asking again. Before that:", "bold red")
        return Group(lost, draw(self._source.url, when, models, self._requests, width, height - 2))

    def _look_at_requests(self, replicas: list[tuple[str, str]]) -> Requests:
        lines: list[tuple[str, RequestLine]] = []
        for model, replica in replicas[:MOST_REPLICAS]:
            seen = self._source.look(model, replica)
            if isinstance(seen, str):
                return Requests([], seen)
            lines += [(replica, line) for line in [*seen.running, *seen.waiting]]
        lines.sort(key=lambda each: (each[1].state != "running", -each[1].age))
        return Requests(lines)
