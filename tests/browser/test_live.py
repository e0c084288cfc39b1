"""What is clicked on the first tab shows the numbers that the debug interface has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import percent
from tests.browser.stage import Stage

PIXELS = """total => {
  const canvas = document.getElementById("device");
  const columns = Number(canvas.dataset.columns), size = canvas.width / columns;
  const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({length: total}, (_, block) => {
    const x = (block % columns) * size + 3, y = Math.floor(block / columns) * size + 3;
    return [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 3)];
  });
}"""
"""The colour of each block, near a corner of its cell."""

COLOURS = {0: "free", 1: "cached", 2: "held"}


def held_still(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole picture, and its requests by id."""
    shown = stage.blocks()
    return shown, {item["id"]: item for item in shown["requests"]}


def click_request(page: Page, request_id: str) -> None:
    page.locator(f'#requests tr[data-key="{request_id}"] button').click()
    expect(page.locator('[data-fact="Request"] dd')).to_have_text(request_id)


def click_block(page: Page, block: int, tier: str = "device") -> None:
    """Where the map has it."""
    canvas = page.locator(f"#{tier}")
    columns = int(canvas.get_attribute("data-columns") or 0)
    box = canvas.bounding_box()
    assert box is not None
    size = box["width"] / columns
    canvas.click(
        position={"x": (block % columns + 0.5) * size, "y": (block // columns + 0.5) * size}
    )


def facts(page: Page, within: str) -> dict[str, str]:
    pairs = page.locator(f"{within} [data-fact]").all()
    return {
        each.get_attribute("data-fact") or "": each.locator("dd").inner_text() for each in pairs
    }


def test_the_pool_in_words(page: Page, stage: Stage) -> None:
    shown, _ = held_still(stage)
    device = shown["device"]
    used = device["total"] - 1 - device["free"]
    free = device["free"] - device["cached"]
    expect(page.locator("#device-words")).to_have_text(
        f"{used} in use, {device['cached']} free and findable, {free} free, "
        f"of {device['total'] - 1} blocks of {shown['block_size']} tokens"
    )
    host = shown["host"]
    expect(page.locator("#host-words")).to_have_text(
        f"{host['total'] - host['free']} in use, {host['cached']} findable, "
        f"of {host['total']} blocks"
    )


def test_every_request_has_a_line(page: Page, stage: Stage) -> None:
    _, requests = held_still(stage)
    rows = page.locator("#requests tbody tr")
    expect(rows).to_have_count(len(requests))
    for row in rows.all():
        item = requests[row.get_attribute("data-key") or ""]
        sequences = item["sequences"]
        texts = [cell.inner_text() for cell in row.locator("td").all()]
        several = f" ×{len(sequences)}" if len(sequences) > 1 else ""
        assert texts[1] == f"running{several}"
        computed, tokens = (sum(seq[of] for seq in sequences) for of in ("computed", "tokens"))
        assert texts[2] == f"{computed}/{tokens}"
        assert texts[4] == str(sum(len(seq["table"]) for seq in sequences))
        assert texts[5] == "0"


def test_a_request_a_token_a_slot(page: Page, stage: Stage) -> None:
    shown, requests = held_still(stage)
    size, counts = shown["block_size"], shown["device"]["counts"]
    for name, item in requests.items():
        if len(item["sequences"]) > 1:
            continue
        (seq,) = item["sequences"]
        click_request(page, name)
        told = facts(page, "#inspect")
        assert told["Computed"] == f"{seq['computed']} of {seq['tokens']}"
        assert told["Block table"] == f"{len(seq['table'])} entries"
        leaves = page.locator("#leaves .leaf")
        expect(leaves).to_have_count(min(24, len(seq["table"])))
        for place, leaf in enumerate(leaves.all()):
            block = seq["table"][place]
            several = f" ×{counts[block]}" if counts[block] > 1 else ""
            assert leaf.locator(".text").inner_text() == f"{block}{several}"
        for position in (0, size - 1, size, seq["tokens"] - 1):
            page.locator(f'.cell[data-position="{position}"]').click()
            block = seq["table"][position // size]
            expect(page.locator("#path")).to_have_text(
                re.compile(
                    rf"position {position}\W+logical block {position // size}offset "
                    rf"{position % size}\W+physical block {block}\W+slot "
                    rf"{block * size + position % size}"
                )
            )
    assert any(counts[block] > 1 for block in requests[name]["sequences"][0]["table"])


def test_each_token_says_whether_it_is_computed(page: Page, stage: Stage) -> None:
    shown, requests = held_still(stage)
    name, item = next(iter(requests.items()))
    (seq,) = item["sequences"]
    click_request(page, name)
    first = 24 * ((seq["tokens"] - 1) // shown["block_size"] // 24) * shown["block_size"]
    page.get_by_label("Position", exact=True).fill(str(seq["tokens"] - 1))
    page.get_by_role("button", name="Follow").click()
    for position in (first, seq["computed"] - 1, seq["computed"], seq["tokens"]):
        cell = page.locator(f'.cell[data-position="{position}"]')
        if position >= seq["tokens"] and position % shown["block_size"] == 0:
            continue  # it would be in a block that is not there yet
        kind = "answer" if position < seq["computed"] else "known"
        kind = "prompt" if position < 20 else "empty" if position >= seq["tokens"] else kind
        expect(cell).to_have_attribute("data-kind", kind)


def test_samples_of_a_request_share_their_prompt(page: Page, stage: Stage) -> None:
    _, requests = held_still(stage)
    name, item = next(each for each in requests.items() if len(each[1]["sequences"]) == 2)
    click_request(page, name)
    for seq in item["sequences"]:
        page.get_by_label("Sequence", exact=True).select_option(str(seq["index"]))
        expect(page.locator("#leaves .leaf .text").nth(3)).to_have_text(
            re.compile(rf"^{seq['table'][3]}\b")
        )
    one, two = item["sequences"]
    assert one["table"][:3] == two["table"][:3] and one["table"][3] != two["table"][3]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_block_has_the_colour_of_what_it_is(page: Page, stage: Stage, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    shown, _ = held_still(stage)
    device = shown["device"]
    codes = [
        min(count, 126) + 1 if count else int(name is not None)
        for count, name in zip(device["counts"], device["hashes"], strict=True)
    ]
    page.wait_for_timeout(1000)  # what changed last has faded in
    seen: list[list[int]] = page.evaluate(PIXELS, len(codes))
    swatches = {name: swatch(page, name) for name in ("free", "cached", "held", "moving")}
    moving = stage.moving()
    for block, code in enumerate(codes):
        if block in moving:
            assert seen[block] == swatches["moving"]
        elif code in COLOURS:
            assert seen[block] == swatches[COLOURS[code]], (block, code)
    shared = {
        code: seen[block] for block, code in enumerate(codes) if code > 2 and block not in moving
    }
    assert {3, 4} <= set(shared), "held by two, and by three"
    assert len({tuple(colour) for colour in [*shared.values(), *swatches.values()]}) == 6


def swatch(page: Page, name: str) -> list[int]:
    colour = page.locator(f".legend .swatch.{name}").first.evaluate(
        "element => getComputedStyle(element).backgroundColor"
    )
    return [int(part) for part in re.findall(r"\d+", colour)[:3]]


def test_a_block_its_holders_and_back_to_a_request(page: Page, stage: Stage) -> None:
    shown, requests = held_still(stage)
    device = shown["device"]
    owners = {
        seq["number"]: (item["id"], seq) for item in requests.values() for seq in item["sequences"]
    }
    shared = max(range(device["total"]), key=lambda block: device["counts"][block])
    private = next(b for b, count in enumerate(device["counts"]) if count == 1)
    for block in (shared, private):
        click_block(page, block)
        expect(page.locator('#block-facts [data-fact="Block"] dd')).to_have_text(str(block))
        told = facts(page, "#block-facts")
        count = device["counts"][block]
        assert told["Tables that hold it"] == str(count)
        assert told["Slots"] == f"{block * 16}–{block * 16 + 15}"
        kind = f"shared by {count} tables" if count > 1 else "held by one table"
        assert told["It is"] == kind
        name = device["hashes"][block]
        assert told["Content's name"].startswith(name[:16] if name else "none")
        expect(page.locator("#holders li")).to_have_count(count)
        listed = {each.get_attribute("data-key") for each in page.locator("#holders li").all()}
        holders = [owners[number] for number in device["holders"][block]]
        assert listed == {f"{owner} {seq['index']}" for owner, seq in holders}
    owner, seq = holders[0]
    place = page.locator("#holders li").first
    assert place.inner_text().endswith(f"logical block {seq['table'].index(private)}")
    place.locator("button").click()
    expect(page.locator('[data-fact="Request"] dd')).to_have_text(owner)


def test_free_blocks_and_the_null_block(page: Page, stage: Stage) -> None:
    shown, _ = held_still(stage)
    counts, names = shown["device"]["counts"], shown["device"]["hashes"]
    free = max(b for b, count in enumerate(counts) if count == 0 and names[b] is None)
    for block, words in ((0, "the null block, never used"), (free, "free")):
        click_block(page, block)
        expect(page.locator('[data-fact="It is"] dd')).to_have_text(words)
        expect(page.locator("#holders li")).to_have_count(0)


def test_a_block_by_its_number_and_by_the_keyboard(page: Page, stage: Stage) -> None:
    page.get_by_label("Block", exact=True).fill("17")
    page.get_by_role("button", name="Show").click()
    block = page.locator('#block-facts [data-fact="Block"] dd')
    expect(block).to_have_text("17")
    page.locator("#device").focus()
    for key, number in (("ArrowRight", 18), ("ArrowLeft", 17), ("ArrowLeft", 16)):
        page.keyboard.press(key)
        expect(page.locator("#pointed")).to_have_text(re.compile(rf"^Block {number}: "))
    page.keyboard.press("Enter")
    expect(block).to_have_text("16")


def test_figures(page: Page, stage: Stage) -> None:
    overview = stage.http.get("/debug/overview", headers={"Authorization": "Bearer admin"})
    (replica,) = overview.json()["replicas"]
    expect(page.locator('[data-figure="running"] b')).to_have_text("3")
    share = percent(replica["blocks_used"], replica["blocks"])
    expect(page.locator('[data-figure="cache-in-use"] b')).to_have_text(share)
    made = page.locator('[data-figure="generated"] span').last
    expect(made).to_have_text(f"{replica['generation_tokens']:,} tokens in all")
    row = page.locator("#replicas tbody tr td")
    assert [row.nth(i).inner_text() for i in range(5)] == [
        "0",
        "serves",
        "3",
        "0",
        share,
    ]
    expect(page.locator("#steps-words")).to_contain_text("median of")
