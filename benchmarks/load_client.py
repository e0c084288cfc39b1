"""Whether `octavo bench serve` measures rightly, and what it costs itself.

    python benchmarks/load_client.py [--vllm BIN] [--aiperf BIN] [--url URL] [--rounds 3]
    python benchmarks/load_client.py --cost

Clients take turns on one server, each as a process of its own with the same number of requests and
lengths. Without `--url` the server is one whose figures are known: it answers with the first token
after 200 ms and with each further one 40 ms later, by the clock, whatever is asked of it. `BIN` are
the programs `vllm` and `aiperf`. Medians over the rounds; in brackets what differs from the known
figure, or from Octavo's client.

With `--cost`, the same server sends at paces that make thousands of tokens a second, and the
processor time of Octavo's client is divided by the tokens.

A real server's speed drifts from turn to turn on a shared machine. So with `--url`, means are also
set beside those that the server's own `/metrics` count for the very same requests: from their
arrival in the engine, so that what lies between is the way through HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from driver import embedded_model, say
from machine import describe, probe, row

from octavo.cluster.bench.scrape import read_samples

FIRST, GAP = 0.2, 0.04
NAMES = ("output tok/s", "TTFT", "TPOT", "E2EL")
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
)
VLLM_KEYS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
AIPERF_KEYS = (
    *("output_token_throughput", "time_to_first_token"),
    *("inter_token_latency", "request_latency"),
)
Figures = tuple[float, ...]


class Failed(Exception):
    """A client that did not get to its end, as happens to some on a machine that is busy."""


def paced(port: Connection, first: float, gap: float) -> None:
    """A process: an OpenAI server that answers by the clock. Sends the port that it has."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                _, found, rest = head.partition(b"content-length:")
                body = await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""
                if head.startswith(b"post /v1/completions"):
                    await stream(writer, json.loads(body))
                elif head.startswith(b"get /v1/models"):
                    whole(writer, b'{"object":"list","data":[{"id":"paced","root":"paced"}]}')
                else:
                    whole(writer, b"{}", b"404 Not Found")

    def whole(writer: asyncio.StreamWriter, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)

    def event(writer: asyncio.StreamWriter, data: bytes) -> None:
        data = b"data: " + data + b"\n\n"
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def stream(writer: asyncio.StreamWriter, call: dict) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        prompt, tokens = call["prompt"], call["max_tokens"]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for number in range(tokens):
            await asyncio.sleep(begin + first + number * gap - loop.time())
            end = b'"length"' if number == tokens - 1 else b"null"
            event(writer, TOKEN % end)
        length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        event(writer, USAGE % (length, tokens, length + tokens))
        event(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**24, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


BEGIN = b'{"id":"c","object":"text_completion","created":1,"model":"paced","choices":['
TOKEN = BEGIN + b'{"index":0,"text":" leaf","logprobs":null,"finish_reason":%b}],"usage":null}'
USAGE = BEGIN + (b'],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}')


@contextlib.contextmanager
def paced_server(first: float, gap: float) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=paced, args=(theirs, first, gap))
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()


def run(command: list[object], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [str(each) for each in command],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")


def load(args: argparse.Namespace, seed: int) -> list[object]:
    """Flags that `octavo bench serve` and `vllm bench serve` share."""
    return [
        *("--num-prompts", args.requests, "--max-concurrency", args.in_flight, "--seed", seed),
        *("--random-input-len", args.input, "--random-output-len", args.output),
        *("--ignore-eos", "--temperature", 0, "--disable-tqdm", "--save-result"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
    ]


def octavo(url: str, args: argparse.Namespace, seed: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "octavo.cluster.cli.main", "bench", "serve"]
    where = ["--base-url", url, "--tokenizer", args.model]
    run([*command, *where, *load(args, seed), "--result-filename", folder / "octavo.json"])
    found: dict[str, float] = json.loads((folder / "octavo.json").read_text())
    return found


def by_octavo(url: str, args: argparse.Namespace, seed: int, folder: Path) -> Figures:
    found = octavo(url, args, seed, folder)
    return tuple(found[key] for key in VLLM_KEYS)


def by_vllm(url: str, args: argparse.Namespace, seed: int, folder: Path) -> Figures:
    where = ["--base-url", url, "--model", args.name, "--tokenizer", args.model]
    into = ["--result-dir", folder, "--result-filename", "vllm.json"]
    preload = sorted(args.vllm.parents[1].glob("lib/libiomp5.so"))
    environment = {
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LD_PRELOAD": ":".join(map(str, preload)),
    }
    run([args.vllm, "bench", "serve", *where, *load(args, seed), *into], environment)
    found = json.loads((folder / "vllm.json").read_text())
    return tuple(found[key] for key in VLLM_KEYS)


def by_aiperf(url: str, args: argparse.Namespace, seed: int, folder: Path) -> Figures:
    snapshot = folder / "hub" / "models--local--tokenizer" / "snapshots" / "0"
    if not snapshot.exists():
        snapshot.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(args.model / name, snapshot)
        refs = snapshot.parents[1] / "refs"
        refs.mkdir()
        (refs / "main").write_text("0")
    into = folder / f"aiperf-{seed}"
    command = [
        *(args.aiperf, "profile", "--model", args.name, "--url", url, "--streaming"),
        *("--endpoint-type", "completions", "--tokenizer", "local/tokenizer"),
        *("--request-count", args.requests, "--concurrency", args.in_flight),
        *("--synthetic-input-tokens-mean", args.input, "--synthetic-input-tokens-stddev", 0),
        *("--output-tokens-mean", args.output, "--output-tokens-stddev", 0),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
        *("--random-seed", seed, "--artifact-dir", into),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
    ]
    run(command, {"PYTHONPATH": "", "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"})
    found = json.loads((into / "profile_export_aiperf.json").read_text())
    return tuple(found[key]["avg"] for key in AIPERF_KEYS)


def counted(url: str) -> list[tuple[float, float]]:
    """Sum and number of what each of `HISTOGRAMS` has observed."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        samples = read_samples(page.read().decode())
    return [
        (sum(samples.get(f"{name}_sum", [0])), sum(samples.get(f"{name}_count", [0])))
        for name in HISTOGRAMS
    ]


def known(args: argparse.Namespace) -> Figures:
    """What the paced server's figures are, but for the way through the machine."""
    whole = FIRST + (args.output - 1) * GAP
    return args.in_flight * args.output / whole, FIRST * 1e3, GAP * 1e3, whole * 1e3


def ratios(
    figures: Figures, before: list[tuple[float, float]], after: list[tuple[float, float]]
) -> Figures:
    """TTFT, TPOT and E2EL, each divided by the server's own mean in between."""
    own = [
        (now[0] - then[0]) / (now[1] - then[1]) * 1e3
        for then, now in zip(before, after, strict=True)
    ]
    return tuple(client / server for client, server in zip(figures[1:], own, strict=True))


def compare(url: str, truth: Figures | None, args: argparse.Namespace) -> None:
    sides: dict[str, Callable[[str, argparse.Namespace, int, Path], Figures]] = {
        "octavo bench serve": by_octavo
    }
    if args.vllm:
        sides["vllm bench serve"] = by_vllm
    if args.aiperf:
        sides["aiperf"] = by_aiperf
    found: dict[str, list[Figures]] = {side: [] for side in sides}
    beside_server: dict[str, list[Figures]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name:
        for number in range(args.rounds):
            for side, measure in sides.items():
                say(f"round {number + 1}, {side}, {probe(1)}")
                try:
                    before = counted(url) if truth is None else []
                    figures = measure(url, args, number, Path(name))
                    found[side].append(figures)
                    say(f"  {figures}")
                    if truth is None:
                        beside_server[side].append(ratios(figures, before, counted(url)))
                        say(f"  times the server's own: {beside_server[side][-1]}")
                except Failed as failed:
                    say(f"  left out: {failed}")
    print(describe(), "\n")
    print(row("client", *NAMES), row("---", *["---"] * len(NAMES)), sep="\n")
    medians = {
        side: tuple(map(statistics.median, zip(*figures, strict=True)))
        for side, figures in found.items()
        if figures
    }
    beside = truth or medians["octavo bench serve"]
    if truth:
        print(row("known", *(f"{each:.1f}" for each in truth)))
    for side, figures in medians.items():
        cells = [f"{a:.1f} ({a / b - 1:+.1%})" for a, b in zip(figures, beside, strict=True)]
        print(row(f"{side}, {len(found[side])} runs", *cells), flush=True)
    if truth is None:
        print("\nTimes the server's own mean of the same requests:\n")
        print(row("client", *NAMES[1:]), row("---", *["---"] * 3), sep="\n")
        for side, each in beside_server.items():
            if each:
                medians_of = map(statistics.median, zip(*each, strict=True))
                print(row(side, *(f"{ratio:.3f}" for ratio in medians_of)), flush=True)


def cost(args: argparse.Namespace) -> None:
    print(describe(), "\n")
    titles = "in flight", "ms between tokens", "tokens/s", "us a token", "share of one core"
    print(row(*titles, "probe"), row(*["---"] * 6), sep="\n")
    for in_flight, gap in ((16, 0.02), (64, 0.02), (256, 0.05)):
        args.in_flight, args.requests, args.output = in_flight, 2 * in_flight, 256
        speed, shares, rates = "", [], []
        with paced_server(0.05, gap) as url, tempfile.TemporaryDirectory() as name:
            for number in range(args.rounds):
                speed = probe(1)
                found = octavo(url, args, number, Path(name))
                shares.append(found["client_cpu_share"])
                rates.append(found["output_throughput"])
        share, rate = statistics.median(shares), statistics.median(rates)
        each = f"{share / rate * 1e6:.0f}"
        print(row(in_flight, f"{gap * 1e3:.0f}", f"{rate:,.0f}", each, f"{share:.0%}", speed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, metavar="BIN")
    parser.add_argument("--aiperf", type=Path, metavar="BIN")
    parser.add_argument("--url", help="a server instead of the paced one")
    parser.add_argument("--name", default="SmolLM2-135M-Instruct", help="the model's, at that URL")
    parser.add_argument("--model", type=Path, help="whose tokenizer; default: the embedded model")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.model = args.model or embedded_model()
    if args.cost:
        cost(args)
    elif args.url:
        compare(args.url, None, args)
    else:
        with paced_server(FIRST, GAP) as url:
            compare(url, known(args), args)


if __name__ == "__main__":
    main()
