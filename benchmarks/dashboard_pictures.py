"""Pictures of the dashboard beside a server under load.

    octavo serve --executor local --num-gpu-blocks-override 400 --swap-space 0.05 \\
        --max-num-seqs 12 --max-model-len 1024 --journal /tmp/octavo.journal
    python benchmarks/dashboard_pictures.py docs --chromium /usr/bin/chromium

Twice as many requests as there are seats, half of them with a common prefix.
"""

from __future__ import annotations

import argparse
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, TimeoutError, sync_playwright
from top_picture import REQUESTS, ask

WARM_SECONDS = 20
PATIENCE_MS = 60_000  # of a page, on a machine that is busy
BRIEF_MS, TRIES = 2_000, 40  # of a request that runs
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 1300}
NEEDED = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")  # of a PNG; nothing else is kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--chromium", metavar="PATH", required=True)
    options = parser.parse_args()
    over = threading.Event()
    asking = [
        threading.Thread(target=ask, args=(options.url, number, over)) for number in range(REQUESTS)
    ]
    for thread in asking:
        thread.start()
    time.sleep(WARM_SECONDS)
    try:
        with sync_playwright() as playwright:
            arguments = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=options.chromium, args=arguments)
            for name, size, scheme in (
                ("light", WIDE, "light"),
                ("dark", WIDE, "dark"),
                ("phone", PHONE, "light"),
            ):
                page = browser.new_page(
                    viewport=size,  # type: ignore[arg-type]
                    color_scheme=scheme,  # type: ignore[arg-type]
                    device_scale_factor=1 if size is WIDE else 1.5,
                )
                page.set_default_timeout(PATIENCE_MS)
                page.goto(f"{options.url}/dashboard")
                live(page)
                save(page, options.folder / f"dashboard-{name}.png")
                if name == "light":
                    play(page, "A simulation", 0.35)
                    save(page, options.folder / "dashboard-simulate.png")
                    play(page, "This server's journal", 0.8)
                    save(page, options.folder / "dashboard-journal.png")
                page.close()
            browser.close()
    finally:
        over.set()
        for thread in asking:
            thread.join()


def live(page: Page) -> None:
    """A request that shares its prefix, and one of its tokens."""
    page.wait_for_timeout(12_000)  # so that the figures have a course, and ranks their means
    rows = page.locator("#requests tbody tr")
    for turn in range(TRIES):
        try:  # any of them may end meanwhile
            rows.nth(turn % max(1, rows.count())).locator("button").click(timeout=BRIEF_MS)
            page.wait_for_timeout(400)
            if "×" in page.locator("#leaves .leaf").nth(1).inner_text(timeout=BRIEF_MS):
                page.locator('.cell[data-position="20"]').click(timeout=BRIEF_MS)
                page.wait_for_timeout(500)
                return
        except TimeoutError:
            continue
    raise RuntimeError("no request with a shared prefix was met")


def play(page: Page, source: str, moment: float) -> None:
    page.get_by_role("tab", name="Simulate & replay").click()
    page.get_by_text(source).click()
    page.locator("#film").wait_for(timeout=60_000)
    title = "Paged beside reserved" if source == "A simulation" else "As recorded"
    page.get_by_role("heading", name=title).wait_for(timeout=60_000)
    page.get_by_label("Moment").evaluate(
        """(knob, share) => {
          knob.value = share * knob.max;
          knob.dispatchEvent(new Event("input"));
        }""",
        moment,
    )
    page.wait_for_timeout(1500)


def save(page: Page, path: Path) -> None:
    raw = page.screenshot(full_page=page.viewport_size != PHONE)
    path.write_bytes(raw[:8] + b"".join(chunk for kind, chunk in chunks(raw) if kind in NEEDED))


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kinds and all bytes of the chunks of a PNG."""
    at = 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at : at + 12 + length]
        at += 12 + length


if __name__ == "__main__":
    main()
