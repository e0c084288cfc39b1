"""The dashboard of two replicas of two ranks each, in a real Chromium: the replica that is chosen
is the one that is shown, and what the router did is told of both."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from rich.console import Console

from octavo.cluster.cli.flags import parse
from octavo.cluster.cli.top import top
from octavo.cluster.playback import recorded
from octavo.cluster.playback.recorded import Part
from tests.browser.chromium import percent, watch
from tests.e2e.answers import MODEL
from tests.e2e.server import BACK_SECONDS, Server, healthy, read_gauge, scrape, wait_for

KEY = {"Authorization": "Bearer admin"}
TOKENS = 200  # of a prompt that one replica has in its cache and the other has not
REPORT_SECONDS = 20
REASONS = {"prefix": "holds most of its prefix", "new": "prefix new to all"}


@pytest.fixture(scope="module")
def uneven(server: Server) -> dict[str, dict[str, Any]]:
    """Both replicas by name, idle, when one of them alone has something in its cache."""
    wait_for(lambda: healthy(server), BACK_SECONDS, "two idle replicas")
    with ThreadPoolExecutor(8) as pool:  # so that both have done something
        list(pool.map(lambda number: complete(server, [10 + number] * 40, 40), range(8)))
    wait_for(lambda: healthy(server), REPORT_SECONDS, "two idle replicas")
    httpx.post(f"{server.url}/reset_prefix_cache", headers=KEY, timeout=30).raise_for_status()
    complete(server, [9] * TOKENS, 8)
    cached = "octavo:kv_blocks_cached"
    wait_for(lambda: uneven_now(read_gauge(scrape(server.url), cached)), REPORT_SECONDS, "a report")
    wait_for(lambda: healthy(server), REPORT_SECONDS, "two idle replicas")
    wait_for(lambda: told(server) == told(server, 2.5), 60, "heartbeats of the last step")
    return told(server)


def complete(server: Server, prompt: list[int], count: int) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": count, "ignore_eos": True}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()


def uneven_now(cached: dict[str, float]) -> bool:
    return sorted(count > 0 for count in cached.values()) == [False, True]


def told(server: Server, after: float = 0.0) -> dict[str, dict[str, Any]]:
    """What the server says of each replica that is up, so many seconds from now."""
    time.sleep(after)
    shown = httpx.get(f"{server.url}/debug/overview", headers=KEY, timeout=30).json()
    return {each["replica"]: each for each in shown["replicas"]}


@pytest.fixture
def page(
    uneven: dict[str, Any], server: Server, browser: Browser, faults: list[str]
) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script("sessionStorage.setItem('octavo.admin', 'admin')")
    watch(page, server.url, faults)
    page.goto(f"{server.url}/dashboard")
    yield page
    page.close()
    assert faults == []


def choose(page: Page, replica: str) -> None:
    page.locator("#replica").select_option(label=replica)


def test_each_ranks_own_steps_are_measured(uneven: dict[str, Any], server: Server) -> None:
    """Asked first, as it needs no browser."""
    for replica in uneven.values():
        assert len(replica["ranks"]) == 2
        for steps, seconds, exchanging in replica["ranks"]:
            assert steps == replica["ranks"][0][0] > 0, "all ranks compute all plans"
            assert 0 < exchanging < seconds
        assert replica["ranks"][0][1:] != replica["ranks"][1][1:]
    text = scrape(server.url)
    for rank in (0, 1):
        name = f'octavo:rank_steps_total{{engine="{min(uneven)}",model_name="{MODEL}"'
        steps = uneven[min(uneven)]["ranks"][rank][0]
        assert f'{name},replica="{min(uneven)}",rank="{rank}"}} {float(steps)}' in text


def test_the_replica_that_is_chosen_is_shown(page: Page, uneven: dict[str, Any]) -> None:
    for name in [*uneven, *uneven]:
        choose(page, name)
        replica = uneven[name]
        cached, usable = replica["blocks_cached"], replica["blocks"]
        expect(page.locator("#device-words")).to_have_text(
            f"0 in use, {cached:,} free and findable, {usable - cached:,} free, "
            f"of {usable:,} blocks of 16 tokens"
        )
        rows = page.locator("#ranks tbody tr")
        expect(rows).to_have_count(2)
        for rank, (steps, _, _) in enumerate(replica["ranks"]):
            expect(rows.nth(rank).locator("td").first).to_have_text(str(rank))
            expect(rows.nth(rank).locator("td").last).to_have_text(f"{steps:,}")


def test_a_block_of_the_replica_that_is_chosen(
    page: Page, uneven: dict[str, Any], server: Server
) -> None:
    shown = httpx.get(f"{server.url}/debug/blocks", headers=KEY, timeout=30).json()["replicas"]
    full = next(each for each in shown if each["device"]["cached"])
    block, name = next(
        (block, name) for block, name in enumerate(full["device"]["hashes"]) if name is not None
    )
    owner = next(each for each in uneven if uneven[each]["blocks_cached"])
    other = next(each for each in uneven if each != owner)
    for replica, words in ((owner, f"{name[:16]}…"), (other, "none: not full, or not there")):
        choose(page, replica)
        page.get_by_label("Block", exact=True).fill(str(block))
        page.get_by_role("button", name="Show").first.click()
        expect(page.locator('[data-fact="Content\'s name"] dd')).to_have_text(words)


def test_where_requests_were_routed_and_why(page: Page, uneven: dict[str, Any]) -> None:
    rows = page.locator("#replicas tbody tr")
    expect(rows).to_have_count(2)
    expect(page.locator("#replicas-words")).to_have_text("2 replicas")
    for name, replica in uneven.items():
        row = page.locator(f'#replicas tr[data-key="{MODEL} {name}"] td')
        assert row.nth(0).inner_text() == name
        assert [row.nth(i).inner_text() for i in range(1, 5)] == ["serves", "0", "0", "0 %"]
        said = row.last.inner_text()
        routed = {reason: count for reason, count in replica["routed"].items() if count}
        assert len(routed) == len(said.split(", "))
        for reason, words in REASONS.items():
            assert (f"{words} {routed.get(reason, 0):,}" in said) == (reason in routed)
        made, asked = replica["prefix_cache_hits"], replica["prefix_cache_queries"]
        assert row.nth(6).inner_text() == (percent(made, asked) if made else "0 %")


def test_the_journal_of_the_replica_that_is_chosen(
    page: Page, uneven: dict[str, Any], server: Server
) -> None:
    page.get_by_role("tab", name="Simulate & replay").click()
    page.get_by_text("This server's journal").click()
    expect(page.locator("#film-words")).to_contain_text("Recorded")
    page.locator("#own-last").fill("20")
    for name, replica in uneven.items():
        page.locator("#own-replica").select_option(label=name)
        expect(page.locator("#own-path")).to_have_text(replica["journal"])
        shown, _ = recorded.film(Path(replica["journal"]), Part(last=20))
        expect(page.locator("#film-words")).to_contain_text(
            f"shown up to {shown.frames[-1].at - shown.frames[0].at:.1f} s"
        )
        assert shown.settings["replica"] == name


def test_top_tells_steps_by_replica(uneven: dict[str, Any], server: Server) -> None:
    printed = io.StringIO()
    top(parse(["top", "--once", "--interval", "0.3", "--url", server.url]), Console(file=printed))
    assert "step" in printed.getvalue().split("first token")[-1]
