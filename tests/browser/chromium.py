"""A real Chromium, and what its pages complained of: fixtures of every folder that has one look."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  # for a machine that is busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with its module: Playwright keeps an event loop in this thread meanwhile, beside which
    no other test could run its own."""
    named = os.environ.get("OCTAVO_CHROMIUM")
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        without = os.environ.get("OCTAVO_CI_WITHOUT", "")
        assert not os.environ.get("CI") or "chromium" in without, "CI must have a Chromium"
        pytest.skip("no Chromium here: install one, or name it in $OCTAVO_CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def faults() -> list[str]:
    """What the page complained of, or asked of anyone else; to be empty in the end."""
    return []


def watch(page: Page, url: str, faults: list[str]) -> None:
    """Notes every error of a page, and every request that goes elsewhere."""
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda each: _note(not each.url.startswith(url), each.url, faults))
    page.on("console", lambda said: _note(said.type in ("error", "warning"), said.text, faults))


def percent(part: int, whole: int) -> str:
    """As the pages write a share that is neither nothing nor all: a half is rounded up there, where
    Python would make an even digit of it."""
    share = Decimal(100 * part / whole).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{share} %"


def _note(wrong: bool, words: str, faults: list[str]) -> None:
    if wrong and "status of 401" not in words:  # what asking without a key looks like
        faults.append(words)
