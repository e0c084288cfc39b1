"""The second tab plays the server's films, and says what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from octavo.cluster.playback import recorded
from octavo.cluster.playback.film import Film, Frame
from octavo.cluster.playback.recorded import Part
from octavo.cluster.playback.scene import Scene, film
from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED
from tests.browser.chromium import watch
from tests.cluster.case_server import Server


@pytest.fixture
def play(page: Page) -> Iterator[Page]:
    """The tab, with a small scene."""
    page.get_by_role("tab", name="Simulate & replay").click()
    for label, value in (("Requests a second", "40"), ("Blocks in the pool", "64")):
        set_slider(page, label, value)
    expect(page.locator("#film-words")).to_have_text(words_of(SCENE))
    yield page


SCENE = Scene(blocks=64, rate=40.0)
FACTS = ("running", "waiting", "finished", "preempted")


def words_of(scene: Scene) -> str:
    """What is said of its films."""
    said = []
    for name, shown in (("Paged", film(scene, "paged")[0]), ("Reserved", film(scene, "max")[0])):
        room = f"; {shown.room:,} blocks would fit beside the weights"
        said.append(f"{name}: all over after {ended(shown)}{room}.")
    return " ".join(said)


def ended(shown: Film) -> str:
    end = shown.frames[-1]
    finished = f"{end.finished} request{'' if end.finished == 1 else 's'} finished"
    preempted = f"{end.preempted} preemption{'' if end.preempted == 1 else 's'}"
    lasted = end.at - (shown.frames[0].at if shown.began else 0)
    return f"{lasted:.1f} s, {finished}, {preempted}"


def forgive(faults: list[str]) -> None:
    """What a browser notes of a wish that was refused, as it was to be."""
    assert any("status of 400" in each for each in faults)
    faults[:] = [each for each in faults if "status of 400" not in each]


def set_slider(page: Page, label: str, value: str) -> None:
    page.get_by_label(re.compile(rf"^{label}")).evaluate(
        """(knob, value) => {
          knob.value = value;
          knob.dispatchEvent(new Event("input", {bubbles: true}));
        }""",
        value,
    )


def told(page: Page, name: str) -> list[str]:
    return page.locator(f"#film-{name}-facts dd").all_inner_texts()


def expected(shown: Film, at: float) -> list[str]:
    """The words for the frame of that moment."""
    frame: Frame = [each for each in shown.frames if each.at <= at + 1e-9][-1]
    return [str(getattr(frame, name)) for name in FACTS]


def test_each_step_shows_the_numbers_of_its_frame(play: Page) -> None:
    paged, reserved = film(SCENE, "paged")[0], film(SCENE, "max")[0]
    assert paged.frames[-1].preempted > 0
    for place in range(1, 4):
        play.get_by_role("button", name="One step on").click()
        at = paged.frames[place].at
        expect(play.locator("#film-time")).to_contain_text(f"step {paged.frames[place].step} of")
        assert told(play, "paged")[:4] == expected(paged, at)
        assert told(play, "beside")[:4] == expected(reserved, at)
    play.get_by_role("button", name="One step back").click()
    assert told(play, "paged")[:4] == expected(paged, paged.frames[2].at)
    frame = paged.frames[2]
    assert told(play, "paged")[4] == f"{frame.used} of {paged.total - 1}"
    play.get_by_label("Moment").evaluate(
        "(knob) => {knob.value = knob.max; knob.dispatchEvent(new Event('input'));}"
    )
    assert told(play, "paged")[:4] == expected(paged, paged.frames[-1].at)
    assert told(play, "beside")[:4] == expected(reserved, reserved.frames[-1].at)


def test_it_plays_and_pauses(play: Page) -> None:
    now = play.get_by_label("Moment")
    play.get_by_role("button", name="Play").click()
    expect(now).not_to_have_value("0")
    play.get_by_role("button", name="Pause").click()
    here = now.input_value()
    assert float(here) > 0
    play.wait_for_timeout(300)
    assert now.input_value() == here


def test_another_scene_is_another_film(play: Page) -> None:
    play.get_by_label("Prefix sharing").select_option("false")
    play.locator("#knob-hardware").select_option("h100")
    changed = Scene(blocks=64, rate=40.0, sharing=False, hardware="h100")
    expect(play.locator("#film-words")).to_have_text(words_of(changed))


def test_models_and_gpus_are_those_that_can_be_simulated(play: Page) -> None:
    for knob, known in (("model", NAMED), ("hardware", PRESETS)):
        assert play.locator(f"#knob-{knob} option").all_inner_texts() == list(known)


def test_what_cannot_be_is_said_beside_the_last_film(play: Page, faults: list[str]) -> None:
    play.locator("#knob-model").select_option("opt-175b")
    expect(play.locator("#film-words")).to_contain_text("leaves no room for any block")
    expect(play.locator("#film-title")).to_have_text("Paged beside reserved")
    forgive(faults)


def test_a_server_without_a_journal_says_how_to_have_one(play: Page) -> None:
    play.get_by_text("This server's journal").click()
    expect(play.locator("#film-words")).to_contain_text("This server keeps no journal")
    expect(play.locator("#film")).to_be_hidden()
    expect(play.locator("#scene")).to_be_hidden()
    play.get_by_text("A simulation").click()
    expect(play.locator("#film")).to_be_visible()


@pytest.fixture
def recording(browser: Browser, server: Server, faults: list[str]) -> Iterator[Page]:
    """A page at a server that recorded some requests."""
    for length in (20, 40, 60):
        server.post("completions", {"prompt": [length] * length, "max_tokens": 30})
    page = browser.new_page()
    url = str(server.http.base_url).rstrip("/")
    watch(page, url, faults)
    page.goto(f"{url}/dashboard#play")
    yield page
    page.close()
    assert faults == []


def test_the_servers_own_journal(recording: Page, journal: Path, faults: list[str]) -> None:
    recording.get_by_text("This server's journal").click()
    expect(recording.locator("#own-path")).to_have_text(str(journal))
    shown, _ = recorded.film(journal, Part())
    expect(recording.locator("#film-words")).to_have_text(
        f"Recorded: up to its end, after {ended(shown)}."
    )
    expect(recording.locator("#film-title")).to_have_text("As recorded")
    expect(recording.locator("#film-beside")).to_be_hidden()
    for place in (1, 2):
        recording.get_by_role("button", name="One step on").click()
        frame = shown.frames[place]
        expect(recording.locator("#film-time")).to_contain_text(f"step {frame.step} of")
        assert told(recording, "paged")[:4] == [str(getattr(frame, name)) for name in FACTS]
    assert frame.running == 1
    settings = recording.locator("#film-settings")
    expect(settings.locator('[data-fact="Sequences at once"] dd')).to_have_text("64")
    recording.locator("#own-before").select_option("the one before")
    expect(recording.locator("#film-words")).to_contain_text("no file was full so far")
    forgive(faults)


def test_a_part_of_a_journal_in_a_file(recording: Page, journal: Path) -> None:
    recording.get_by_text("A journal's file").click()
    expect(recording.locator("#film-words")).to_contain_text("Choose a file")
    recording.locator("#sent-file").set_input_files(journal)
    expect(recording.locator("#film-words")).to_contain_text("Recorded: up to its end")
    recording.locator("#sent").get_by_label("From step").fill("3")
    recording.locator("#sent").get_by_label("to", exact=True).fill("9")
    recording.locator("#sent").get_by_role("button", name="Show").click()
    shown, _ = recorded.film(journal, Part(first=3, last=9))
    said = f"Recorded: shown up to {ended(shown)}; it goes on after step 9."
    expect(recording.locator("#film-words")).to_have_text(said)
    expect(recording.locator("#film-time")).to_contain_text("step 3 of 9")


def test_a_file_that_is_no_journal(recording: Page, faults: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("else")
    recording.get_by_text("A journal's file").click()
    recording.locator("#sent-file").set_input_files(other)
    words = "the file is not a journal of octavo serve --journal"
    expect(recording.locator("#film-words")).to_have_text(words)
    forgive(faults)
