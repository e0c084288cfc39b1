"""Films of journals show what the scheduler did that wrote them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from octavo.cluster.api import playbacks
from octavo.cluster.journal.errors import JournalError
from octavo.cluster.playback import film as films
from octavo.cluster.playback.child import play_recorded
from octavo.cluster.playback.film import Film, join
from octavo.cluster.playback.recorded import Part, film
from octavo.scheduler.scheduler import Scheduler
from tests.cluster.calls import Connect, error_of
from tests.cluster.journal.driving import Recorded, live_randomly
from tests.cluster.pictures import read_films
from tests.cluster.scripted import ScriptedEngine, says


class Watched(Recorded):
    """Notes what is so while each plan is on its way."""

    def __init__(self, path: Path, **config: object) -> None:
        self.seen: list[tuple[int, float, int, int, int, list[int]]] = []
        super().__init__(path, **config)  # type: ignore[arg-type]

    def plan(self) -> bool:
        made = super().plan()
        if made:
            self.seen.append(state(self.scheduler, self.plans[-1].step, self.now))
        return made


def state(
    scheduler: Scheduler, step: int, now: float
) -> tuple[int, float, int, int, int, list[int]]:
    held = list(scheduler.cache.pool.references)
    preempted = scheduler.counters.preemptions
    return step, now, scheduler.num_running, scheduler.num_waiting, preempted, held


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Many steps of random work under pressure."""
    engine = Watched(tmp_path_factory.mktemp("journal") / "file", num_host_blocks=6)
    draw = random.Random(5)
    live_randomly(engine, draw, 60)
    engine.close()
    return engine


def shown(path: Path, part: Part | None = None) -> tuple[Film, list[list[int]]]:
    [made] = read_films(join([film(path, part or Part())]))
    return made


def test_each_frame_is_the_state_of_its_step(watched: Watched) -> None:
    made, codes = shown(watched.recorder.path)
    assert made.note == "" and made.every == 1
    assert made.settings["max_num_seqs"] == "6" and made.settings["replica"] == "r"
    frames = {frame.step: (frame, blocks) for frame, blocks in zip(made.frames, codes, strict=True)}
    assert len(watched.seen) > 60 and watched.scheduler.counters.preemptions > 0
    for step, now, running, waiting, preempted, held in watched.seen[:-1]:
        frame, blocks = frames[step]
        assert (frame.at, frame.running, frame.waiting) == (now, running, waiting)
        assert frame.preempted == preempted
        assert [max(0, (code & 127) - 1) for code in blocks] == held
    last = made.frames[-1]
    assert (last.running, last.waiting, last.used) == (0, 0, 0)


def test_a_part_of_it(watched: Watched) -> None:
    whole, _ = shown(watched.recorder.path)
    made, _ = shown(watched.recorder.path, Part(first=10, last=20))
    assert made.frames[:-1] == [each for each in whole.frames if 10 <= each.step <= 20]
    assert made.note == "it goes on after step 20"
    with pytest.raises(JournalError, match=r"has no step from 99,999 on, its last one is \d+"):
        film(watched.recorder.path, Part(first=99_999))
    unfinished, _ = film(watched.recorder.path, Part(), seconds=0)
    assert unfinished.note.startswith("it goes on") and len(unfinished.frames) == 2


def test_a_long_one_has_a_frame_in_a_few_steps(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, codes = shown(watched.recorder.path)
    monkeypatch.setattr(films, "MOST_FRAMES", 30)
    few, some = shown(watched.recorder.path)
    assert few.every > 1 and 15 <= len(few.frames) <= 31
    asked = len(whole.frames) - 1
    kept = range(0, asked, few.every)
    assert few.frames[:-1] == [whole.frames[place] for place in kept]
    assert some[:-1] == [codes[place] for place in kept]
    assert few.frames[-1] == whole.frames[-1]


def test_what_follows_a_break_is_not_shown(tmp_path: Path) -> None:
    engine = Recorded(tmp_path / "two")
    for seed in (1, 2):
        live_randomly(engine, random.Random(seed), 10)
        engine.recorder.settle(engine.now, idle=True)
    engine.close()
    raw = bytearray(engine.recorder.path.read_bytes())
    raw[-1] ^= 1
    engine.recorder.path.write_bytes(bytes(raw))
    made, _ = shown(engine.recorder.path)
    assert "is broken at byte" in made.note and len(made.frames) > 5


def test_a_sent_file_is_played(connected: Connect, watched: Watched, tmp_path: Path) -> None:
    raw = watched.recorder.path.read_bytes()
    with connected(ScriptedEngine(says("x"))) as http:
        answer = http.post("/debug/journal/sent", content=raw, params={"first": "5"})
        assert answer.status_code == 200, answer.text
        assert answer.content == join([film(watched.recorder.path, Part(first=5))])
        said = error_of(http.post("/debug/journal/sent", content=b"else"), 400, "journal")
        assert said == "the file is not a journal of octavo serve --journal"
        error_of(
            http.post("/debug/journal/sent", content=raw, params={"first": "-1"}), 400, "first"
        )


def test_a_part_of_a_replicas_own_is_asked_for(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        query = {"model": "alias", "replica": "0", "before": "true", "last": "7"}
        assert http.post("/debug/journal", params=query).content == b"films"
        assert engine.parts == [("0", Part(last=7, before=True))]
        error_of(http.post("/debug/journal", params={"replica": "9"}), 400, "replica")
        error_of(http.post("/debug/journal", params={"color": "red"}), 400)


def test_a_server_without_a_journal_says_so() -> None:
    with pytest.raises(JournalError, match="this server keeps no journal"):
        asyncio.run(play_recorded(None, Part()))


def test_too_much_is_not_taken(connected: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbacks, "MOST_SENT", 1000)
    with connected(ScriptedEngine(says("x")), admin_api_key="admin") as http:
        key = {"Authorization": "Bearer admin"}
        error_of(http.post("/debug/journal/sent", content=b"x" * 1001, headers=key), 413)
        error_of(http.post("/debug/journal/sent", content=b"x"), 401)
        error_of(http.post("/debug/journal"), 401)
