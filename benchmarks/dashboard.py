"""What the dashboard costs the engine, and how fast it draws, with 100,000 blocks.

    python benchmarks/dashboard.py [--blocks 100000] [--requests 200] [--chromium PATH]

The engine's part is timed in the engine, as the step loop waits for it: a picture as the page asks
for it four times a second, the same with a request chosen, and with a block chosen, which the page
asks for once a second. Shares are of a second of the step loop's processor time.

The page's part, with --chromium, is a real Chromium without a GPU at a real server whose workers
have no model: prompts of a thousand blocks come and go, so that tens of thousands of cells change.
Frames are those that the browser drew, and their cost is that of the page's scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from blocks import BLOCK_SIZE, full_scheduler
from driver import embedded_model, say
from machine import describe, row

from octavo.cluster.api.app import create_app
from octavo.cluster.api.server import HttpServer
from octavo.cluster.api.settings import Address, FrontSettings
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.cluster.picture import Look, Painter
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.workers.null import NullWorker

ROUNDS = 101
LOOKS = 4  # a second, of the page
PROMPT_BLOCKS, ROWS = 1000, 64
STEP_SECONDS = 0.03

FRAMES = """seconds => new Promise((done) => {
  const ask = window.requestAnimationFrame.bind(window), spent = [];
  window.requestAnimationFrame = (draw) => ask((now) => {
    const began = performance.now();
    draw(now);
    spent.push(performance.now() - began);
  });
  const put = OffscreenCanvasRenderingContext2D.prototype.putImageData;
  let drawn = 0;
  OffscreenCanvasRenderingContext2D.prototype.putImageData = function (...given) {
    drawn += 1;
    return put.apply(this, given);
  };
  const began = performance.now();
  let frames = 0;
  const count = () => {
    frames += 1;
    const passed = (performance.now() - began) / 1000;
    if (passed < seconds) return ask(count);
    spent.sort((a, b) => a - b);
    const at = (share) => spent[Math.floor(share * (spent.length - 1))];
    done([frames / passed, drawn / passed, at(0.99)]);
  };
  ask(count);
})"""


def measure(paint: Callable[[Look], bytes], look: Look, clock: list[float]) -> tuple[float, int]:
    """Median milliseconds of processor time of a picture that is made anew, and its bytes."""
    took, size = [], 0
    for _ in range(ROUNDS):
        clock[0] += 1
        began = time.thread_time()
        size = len(paint(look))
        took.append((time.thread_time() - began) * 1e3)
    return statistics.median(took), size


def engine(blocks: int, requests: int) -> None:
    say("filling the pool")
    scheduler, clock = full_scheduler(blocks, requests), [0.0]
    painter = Painter(scheduler, lambda: clock[0])
    for i in range(300):
        painter.stepped(float(i), requests, 0.02, 0.019)
    looks = {
        "the page as it is": (Look(), LOOKS),
        "a request chosen": (Look(request="r7"), LOOKS),
        "a block chosen": (Look(block=blocks - 1), 1),
    }
    print(row("what is asked for", "blocks", "requests", "processor, median ms", "KB", "share"))
    print(row(*["---"] * 6))
    for name, (look, times) in looks.items():
        took, size = measure(painter.paint, look, clock)
        share = f"{took * times / 10:.2f} % at {times} a second"
        print(row(name, f"{blocks:,}", requests, f"{took:.2f}", f"{size / 1e3:.0f}", share))


async def page(blocks: int, seconds: float, path: str) -> None:
    length = PROMPT_BLOCKS * BLOCK_SIZE + 64
    config = SchedulerConfig(
        length, max_num_seqs=ROWS, max_num_batched_tokens=4 * length, watermark_low=0.0
    )
    workers = LocalWorkers(
        lambda: NullWorker(BLOCK_SIZE, num_blocks=blocks + 1, step_seconds=STEP_SECONDS)
    )
    async with LocalEngine(workers, lambda _: config) as client:
        app = create_app(client, FrontSettings(str(embedded_model()), ("model",)))
        server = HttpServer(app, Address("127.0.0.1", 0))
        server.start()
        players = [asyncio.create_task(keep_asking(client, number)) for number in range(ROWS)]
        print(row("blocks", "frames/s", "of them with a new map", "script a frame, p99 ms"))
        print(row(*["---"] * 4))
        url = f"http://127.0.0.1:{server.port}/dashboard"
        rate, drawn, most = await asyncio.to_thread(watch, url, seconds, path)
        used = client.stats()[0].blocks_used
        print(
            row(
                f"{used:,} of {blocks:,} in use",
                f"{rate:.1f}",
                f"{drawn:.1f}",
                f"{most:.1f}",
            )
        )
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        await server.stop()


async def keep_asking(client: Any, number: int) -> None:
    source, times = random.Random(number), 0
    while True:
        times += 1
        first = [source.randrange(256) for _ in range(BLOCK_SIZE)]  # so all that follow differ too
        prompt = first * PROMPT_BLOCKS
        sampling = SamplingParams(max_tokens=source.randrange(4, 60), seed=0, ignore_eos=True)
        async for _ in client.generate(Request(f"r{number}-{times}", tuple(prompt), sampling)):
            pass


def watch(url: str, seconds: float, path: str) -> list[float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(url)
        tab.locator("#requests tbody tr").first.wait_for(timeout=120_000)
        tab.wait_for_timeout(5000)
        found: list[float] = tab.evaluate(FRAMES, seconds)
        browser.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--chromium", metavar="PATH", help="measure the page's frames with it")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    print(describe(), "\n")
    engine(args.blocks, args.requests)
    if args.chromium:
        print()
        asyncio.run(page(args.blocks, args.seconds, args.chromium))


if __name__ == "__main__":
    main()
