"""`octavo top --once` beside a tiny server, and what it makes of figures and of mistakes."""

from __future__ import annotations

import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from rich.console import Console

from octavo.cluster.api.metrics import render_metrics
from octavo.cluster.cli.flags import parse
from octavo.cluster.cli.main import main
from octavo.cluster.cli.top import top
from octavo.cluster.stats import EngineStats, Measured
from octavo.cluster.top.figures import figures
from octavo.cluster.top.readings import Reading, read_metrics
from octavo.cluster.top.screen import ModelView, Requests, draw
from octavo.scheduler.config import Capacity
from octavo.scheduler.glance import RequestLine
from octavo.workers.progress import Tally
from tests.cluster.serving import serve_engine, settings_for, tiny_engine
from tests.cluster.test_metrics import snapshot
from tests.conftest import TinyModel

WIDTH = 80


@pytest.fixture(scope="module")
def server(tiny_model: TinyModel) -> Iterator[str]:
    """Few blocks and seats, an admin key, and requests that go on for as long as it is there."""
    path = tiny_model()
    engine = tiny_engine(path, num_blocks=64, max_num_seqs=4)
    with serve_engine(engine, settings_for(path, admin_api_key="admin")) as url:
        over = threading.Event()

        def ask(number: int) -> None:
            prompt = [7] * 32 + [number] * 30
            body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}
            while not over.is_set():
                with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
                    for _ in answer.iter_lines():
                        if over.is_set():
                            break

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while httpx.get(f"{url}/load").json()["server_load"] < len(threads):
            time.sleep(0.01)
        yield url
        over.set()
        for thread in threads:
            thread.join()


def once(*arguments: str) -> list[str]:
    """The lines that it prints."""
    printed = io.StringIO()
    top(
        parse(["top", "--once", "--interval", "0.3", *arguments]),
        Console(file=printed, width=WIDTH),
    )
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= WIDTH
    return lines


def test_once_shows_pools_queues_rates_and_requests(server: str) -> None:
    text = "\n".join(once("--url", server, "--admin-api-key", "admin"))
    assert re.search(r"octavo top  http://127\.0\.0\.1:\d+ .* 1 replica, ", text)
    running, waiting = re.search(r"running (\d+)   waiting (\d+)", text).groups()  # type: ignore[union-attr]
    assert 0 < int(running) <= 4 and int(waiting) > 0
    [device] = re.findall(r"^ +(. private .*) of 63$", text, re.M)
    blocks = dict(re.findall(r". (private|shared|cached|free) (\d+)", device))
    assert sum(map(int, blocks.values())) == 63
    assert int(blocks["private"]) > 0 and int(blocks["shared"]) >= 2
    assert re.search(r"tokens/s [\d,.]+ +of prompts [\d,.]+, found [\d,.]+", text)
    assert re.search(r"between tokens [\d.]+ ms, 95 % [\d.]+ m?s", text)
    requests = re.findall(r"^(\S+) +(running|waiting|swapped) +62 .* m?s *$", text, re.M)
    assert len(requests) >= 5 and requests[0][1] == "running"


def test_without_the_admin_key_everything_but_the_requests(server: str) -> None:
    for key in ((), ("--admin-api-key", "wrong")):
        text = "\n".join(once("--url", f"{server}/v1/", *key))
        assert "private" in text and "running" in text
        assert text.endswith("requests are shown to who has the server's --admin-api-key")


def test_no_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert main(["top", "--once", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == (
        f"octavo: error: no server answers at http://127.0.0.1:{port}: connection refused\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "localhost:8000"], "--url must be like http://127.0.0.1:8000"),
        (["--interval", "0"], "--interval must be a number of seconds above 0"),
        (["--interval", "nan"], "--interval must be a number of seconds above 0"),
    ],
)
def test_mistakes_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["top", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_server_that_is_not_ours_is_told_apart() -> None:
    with pytest.raises(ValueError, match="no metrics of an engine"):
        read_metrics("# TYPE up gauge\nup 1.0\n")


def read(at: float, *stats: EngineStats) -> Reading:
    return Reading(at, read_metrics(render_metrics({"m": stats}).decode()))


def test_figures_are_of_what_went_on_between_two_looks() -> None:
    first, second = Measured(), Measured()
    for measured, times in ((first, 1), (second, 3)):
        measured.generation_tokens = 100 * times
        measured.preemptions, measured.prefix_cache_queries = times, 50 * times
        measured.prefix_cache_hits = 20 * times
        measured.request_preemptions.observe(0, times=2 * times)
        measured.time_to_first_token.observe(0.03, times=10 * times)
        measured.iteration_tokens.observe(16, times=times)
    before = read(10.0, snapshot("a", first))
    now = read(14.0, snapshot("a", second), snapshot("new", second))
    seen = figures(now, before, [("m", "a"), ("m", "new")])
    assert (seen.running, seen.waiting) == (6, 4)
    assert seen.device == {"private": 50, "shared": 0, "cached": 80, "free": 70}
    assert seen.usage == 0.25
    assert seen.generated == 50, "what is new counts from now on"
    assert (seen.finished, seen.steps, seen.step_tokens) == (1, 0.5, 16)
    assert (seen.preemptions, seen.hit_rate) == (0.5, 0.4)
    assert seen.first_token == pytest.approx((0.03, 0.039))
    assert seen.between_tokens is None
    alone = figures(now, None, [("m", "new")])
    assert (alone.generated, alone.first_token, alone.preemptions) == (None, None, None)


def test_a_replica_that_began_anew_is_not_below_zero() -> None:
    before, now = (
        read(at, snapshot("a", Measured(generation_tokens=n))) for at, n in ((1.0, 90), (2.0, 5))
    )
    assert figures(now, before, [("m", "a")]).generated == 0


def test_steps_are_told_by_rank() -> None:
    before, now = (
        read(at, with_ranks("a", Tally(n, n * 0.02), Tally(n, n * 0.03, n * 0.006)))
        for at, n in ((1.0, 100), (5.0, 300))
    )
    seen = figures(now, before, [("m", "a")])
    assert [each.rank for each in seen.ranks] == [0, 1]
    assert [each[1:] for each in seen.ranks] == [
        pytest.approx((0.02, 0)),
        pytest.approx((0.03, 0.2)),
    ]
    text = "\n".join(drawn([ModelView("m", seen, {"a": seen})], Requests([]), 80, 24))
    assert "step by rank 0: 20 ms  1: 30 ms 20%  (exchanging with the others)" in text
    assert figures(now, now, [("m", "a")]).ranks == (), "no step, no time"


def with_ranks(replica: str, *ranks: Tally) -> EngineStats:
    stats = snapshot(replica, Measured())
    stats.ranks = list(ranks)
    return stats


def drawn(models: list[ModelView], requests: Requests, width: int, height: int) -> list[str]:
    printed = io.StringIO()
    picture = draw("http://host:8000", "10:00:00", models, requests, width, height)
    Console(file=printed, width=width).print(picture)
    return printed.getvalue().splitlines()


def view(replicas: int, **changes: Any) -> ModelView:
    stats = [with_ranks(f"replica-{n}", *[Tally(9, 0.9, 0.3)] * 8) for n in range(replicas)]
    for each in stats:
        for name, value in changes.items():
            setattr(each, name, value)
    now, before = read(1.0, *stats), read(0.0, *[with_ranks(each.replica) for each in stats])
    one_by_one = {key[1]: figures(now, before, [key]) for key in now.replicas}
    return ModelView("m", figures(now, before, list(now.replicas)), one_by_one)


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("height", [10, 24, 50])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    line = RequestLine("cmpl-" + 32 * "f", "running", 0, 3, 1, 12345, 0, 678, 9, 1234, 0, 5.5)
    requests = Requests([("replica-0", line)] * 200)
    host = {"host_blocks_total": 100, "host_blocks_used": 5, "host_blocks_cached": 10}
    lines = drawn([view(3, **host, capacity=Capacity(10**6, 16))], requests, width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 25)
    assert lines[-1].startswith("and ")
    for title, cells in (("device", "█▒·"), ("host", "█▒·")):
        [bar] = [text for text in lines if text.startswith(title)]
        assert len(bar) == width and set(bar[8:]) == set(cells)
    assert len([text for text in lines if text.startswith("replica-")]) == 3


def test_what_is_amiss_is_said() -> None:
    text = "\n".join(
        drawn([view(1, queue_age=75.0, seconds_since_step=9.0)], Requests([]), 100, 40)
    )
    assert "waiting 2, the longest 75.0 s" in text and "a step has taken 9.0 s" in text
    assert "No replica is up." in "\n".join(drawn([], Requests([]), 80, 24))


def test_names_cannot_move_the_cursor() -> None:
    hostile = Requests([], "\x1b[2Jgone\nnow")
    [*_, last] = drawn([], hostile, 80, 24)
    assert last == "?[2Jgone?now"
