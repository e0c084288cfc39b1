"""The page itself: keys, colours, widths, keyboards, and the conversation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import watch
from tests.browser.stage import ADMIN_KEY, Stage
from tests.cluster.case_server import Server

CONTRAST = """() => {
  const dot = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const parts = (colour) => {
    dot.clearRect(0, 0, 1, 1);
    dot.fillStyle = colour;
    dot.fillRect(0, 0, 1, 1);
    return [...dot.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.disabled) continue;
    const ratios = [light(getComputedStyle(element).color), light(behind(element))];
    const [dark, bright] = ratios.sort((a, b) => a - b);
    found.push([(bright + 0.05) / (dark + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


def test_it_asks_for_the_admin_key_until_it_is_right(
    browser: Browser, stage: Stage, faults: list[str]
) -> None:
    page = browser.new_page()
    watch(page, stage.url, faults)
    page.goto(f"{stage.url}/dashboard")
    dialog = page.get_by_role("dialog", name="Admin key")
    for key in ("wrong", ADMIN_KEY):
        expect(dialog).to_be_visible()
        expect(page.locator("#requests tbody tr")).to_have_count(0)
        page.get_by_role("textbox", name="Key").fill(key)
        page.get_by_role("button", name="Use it").click()
    expect(page.locator("#requests tbody tr")).to_have_count(3)
    expect(dialog).to_be_hidden()
    page.reload()
    expect(page.locator("#requests tbody tr")).to_have_count(3)
    page.close()
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(page: Page, scheme: Any) -> None:
    """WCAG AA, 4.5 to 1, and the colours are those that the reader's system has."""
    page.emulate_media(color_scheme=scheme)
    page.locator("#requests tbody button").first.click()
    expect(page.locator("#leaves .leaf").first).to_be_visible()
    found = page.evaluate(CONTRAST)
    assert len(found) > 60
    assert [each for each in found if each[0] < 4.5] == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (min(map(int, re.findall(r"\d+", paper))) > 128) == (scheme == "light")


def test_a_reader_may_choose_the_colours(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Colours: as the system has them").click()
    light = page.evaluate(paper)
    assert light != dark
    page.reload()
    page.locator("#requests tbody tr").first.wait_for()
    assert page.evaluate(paper) == light
    page.get_by_role("button", name="Colours: light").click()
    assert page.evaluate(paper) == dark


def test_it_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("#requests tbody button").first.click()
    expect(page.locator("#leaves .leaf").first).to_be_visible()
    for tab in ("Live", "Simulate & replay", "Chat"):
        page.get_by_role("tab", name=tab).click()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, tab


def test_tabs_by_the_keyboard(page: Page) -> None:
    page.get_by_role("tab", name="Live").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Simulate & replay")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_visible()
    expect(page.get_by_role("tabpanel", name="Live")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Live")).to_be_visible()


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, canvas")]
          .filter((each) => !each.ariaHidden && !each.ariaLabel && !each.labels?.length
            && !each.textContent.trim()).map((each) => each.outerHTML)"""
    )
    assert nameless == []


def test_hold_keeps_the_picture(page: Page, stage: Stage) -> None:
    page.get_by_role("button", name="Hold").click()
    page.wait_for_timeout(300)
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.wait_for_timeout(700)
    assert asked == []
    page.get_by_role("button", name="Hold").click()
    page.wait_for_timeout(700)
    assert asked


def test_a_conversation(browser: Browser, server: Server, faults: list[str]) -> None:
    """Over the server of other tests, which wants no key: what a client gets, and as text."""
    page = browser.new_page()
    url = str(server.http.base_url).rstrip("/")
    watch(page, url, faults)
    page.goto(f"{url}/dashboard#chat")
    expect(page.locator("#chat-model")).to_have_value("tiny")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("At most").fill("12")
    asked = "<img src=x onerror=alert(1)> & <b>leaves</b>"
    messages: list[dict[str, str]] = []
    for turn in range(2):
        page.get_by_label("Message").fill(asked)
        page.keyboard.press("Enter")
        messages.append({"role": "user", "content": asked})
        body = {"messages": messages, "temperature": 0, "max_tokens": 12}
        answer = server.post("chat/completions", body).json()
        said = page.locator(".said p")
        expect(said.nth(2 * turn)).to_have_text(asked)
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        text = answer["choices"][0]["message"]["content"]
        assert said.nth(2 * turn + 1).evaluate("each => each.textContent") == text
        tokens = answer["usage"]["prompt_tokens"]
        below = page.locator(".said > .quiet").nth(2 * turn + 1)
        expect(below).to_have_text(re.compile(rf"^{tokens} tokens in .* 12 out; the first after"))
        messages.append({"role": "assistant", "content": text})
    assert page.locator("#chat-log img, #chat-log b").count() == 0
    page.get_by_role("button", name="New").click()
    expect(page.locator(".said")).to_have_count(0)
    page.close()
    assert faults == []
