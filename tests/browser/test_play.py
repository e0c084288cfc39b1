"""The second tab plays the server's films, and says what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from octavo.cluster.playback import Film, Frame, Scene, film


@pytest.fixture
def play(page: Page) -> Iterator[Page]:
    """The tab, with a small scene."""
    page.get_by_role("tab", name="Simulate").click()
    for label, value in (("Requests a second", "40"), ("Blocks in the pool", "64")):
        set_slider(page, label, value)
    expect(page.locator("#film-words")).to_have_text(words_of(SCENE), timeout=60_000)
    yield page


SCENE = Scene(blocks=64, rate=40.0)


def words_of(scene: Scene) -> re.Pattern[str]:
    """What is said of its films."""
    said = []
    for name, shown in (("Paged", film(scene, "paged")[0]), ("Reserved", film(scene, "max")[0])):
        end = shown.frames[-1]
        finished = f"{end.finished} requests finished"
        preempted = f"{end.preempted} preemption{'' if end.preempted == 1 else 's'}"
        said.append(rf"{name}: [^:]*{end.at:.1f} s, {finished}, {preempted}\.")
    return re.compile(" ".join(said))


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
    return [str(getattr(frame, name)) for name in ("running", "waiting", "finished", "preempted")]


def test_each_step_shows_the_numbers_of_its_frame(play: Page) -> None:
    paged, reserved = film(SCENE, "paged")[0], film(SCENE, "max")[0]
    assert paged.frames[-1].preempted > 0
    for place in range(1, 4):
        play.get_by_role("button", name="One step on").click()
        at = paged.frames[place].at
        expect(play.locator("#film-time")).to_contain_text(f"step {place} of")
        assert told(play, "paged")[:4] == expected(paged, at)
        assert told(play, "beside")[:4] == expected(reserved, at)
    play.get_by_role("button", name="One step back").click()
    assert told(play, "paged")[:4] == expected(paged, paged.frames[2].at)
    frame = paged.frames[2]
    assert told(play, "paged")[4] == str(frame.used)
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
    changed = Scene(blocks=64, rate=40.0, sharing=False)
    expect(play.locator("#film-words")).to_have_text(words_of(changed), timeout=60_000)
