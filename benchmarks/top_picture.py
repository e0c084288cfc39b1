"""A picture of `octavo top` beside a server under load.

    octavo serve --executor local --num-gpu-blocks-override 160 --swap-space 0.05 \\
        --max-num-seqs 12 --max-model-len 1024
    python benchmarks/top_picture.py docs/top.svg [--url http://127.0.0.1:8000]

Twice as many requests as there are seats, half of them with a common prefix.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import threading
import time
from pathlib import Path

import httpx
from rich.console import Console

from octavo.cluster.cli.flags import parse
from octavo.cluster.cli.top import top

REQUESTS = 24
WARM_SECONDS = 15
WIDTH = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    options = parser.parse_args()
    over = threading.Event()
    asking = [
        threading.Thread(target=ask, args=(options.url, number, over)) for number in range(REQUESTS)
    ]
    for thread in asking:
        thread.start()
    time.sleep(WARM_SECONDS)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    top(parse(["top", "--once", "--interval", "8", "--url", options.url]), console)
    over.set()
    for thread in asking:
        thread.join()
    drawn = console.export_svg(title="octavo top")
    fonts = r"@font-face \{.*?\}\s*"  # which rich would have fetched from elsewhere
    Path(options.target).write_text(re.sub(fonts, "", drawn, flags=re.DOTALL))


def ask(url: str, number: int, over: threading.Event) -> None:
    source = random.Random(number)
    while not over.is_set():
        prefix = [17] * 96 if number % 2 else []
        prompt = prefix + [source.randrange(100, 9000) for _ in range(source.randrange(20, 200))]
        body = {"prompt": prompt, "max_tokens": source.randrange(40, 200), "ignore_eos": True}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=120
        ) as answer:
            for _ in answer.iter_lines():
                if over.is_set():
                    break


if __name__ == "__main__":
    main()
