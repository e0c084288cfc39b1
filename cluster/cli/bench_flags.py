"""The flags of `octavo bench`. Names and defaults are vLLM's where it has one."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from octavo.cluster.bench.names import DATASETS, ENDPOINTS, METRICS, PROMPT_FORMATS
from octavo.cluster.cli.engine_flags import (
    EXECUTOR,
    MODEL,
    TENSOR_PARALLEL_SIZE,
    add_cache,
    add_device,
    add_model,
    add_schedule,
)
from octavo.cluster.cli.load_flags import (
    BURSTINESS,
    CHUNK_HASH_SIZE,
    DATASET_NAME,
    DATASET_PATH,
    GOODPUT,
    NUM_PROMPTS,
    RANDOM_INPUT_LEN,
    RANDOM_OUTPUT_LEN,
    REQUEST_RATE,
    SEED,
    N,
)
from octavo.cluster.cli.values import json_object, port

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SERVE_EPILOG = """\
examples:
  octavo bench serve --num-prompts 64 --max-concurrency 16 --ignore-eos
  octavo bench serve --dataset-name azure --dataset-path conv.csv --trace-speed 2 --plot run.png
  octavo bench serve --base-url http://10.0.0.7:8000 --request-rate 4 --goodput ttft:500 tpot:50
"""


def add_bench(commands: Commands) -> None:
    """Adds the command."""
    bench = commands.add_parser(
        "bench",
        help="measure a server or an engine under load",
        description="Measures a server under load, or an engine in this process.",
        allow_abbrev=False,
    )
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="KIND")
    _serve(kinds)
    _throughput(kinds)
    _latency(kinds)


def _serve(kinds: Commands) -> None:
    serve = kinds.add_parser(
        "serve",
        help="send a load to an OpenAI server",
        description="Sends a load to an OpenAI server, Octavo or another, and measures what it\n"
        "answers. The key, if it wants one, is $OPENAI_API_KEY.",
        epilog=SERVE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _server(serve)
    _dataset(serve)
    _traffic(serve)
    _sampling(serve)
    _results(serve)


def _throughput(kinds: Commands) -> None:
    throughput = kinds.add_parser(
        "throughput",
        help="tokens a second of an engine in this process, all requests at once",
        description="Tokens a second of an engine in this process that has all requests at once.",
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    _engine(throughput)
    _dataset(throughput)
    N.add(throughput)
    throughput.add_argument(
        "--num-warmups",
        type=int,
        default=0,
        metavar="N",
        help="requests before those that count (default: %(default)s)",
    )
    _output_json(throughput)


def _latency(kinds: Commands) -> None:
    latency = kinds.add_parser(
        "latency",
        help="seconds that an engine in this process takes for one batch",
        description="Seconds that an engine in this process takes for one batch of random prompts.",
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    _engine(latency)
    latency.set_defaults(enable_prefix_caching=False)  # as in vLLM: the prompts are always the same
    for flag, default, text in (
        ("--input-len", 32, "tokens of each prompt"),
        ("--output-len", 128, "tokens of each answer"),
        ("--batch-size", 8, "prompts at once"),
        ("--n", 1, "answers to each prompt"),
        ("--num-iters-warmup", 10, "batches before those that count"),
        ("--num-iters", 30, "batches that count"),
        ("--seed", 0, "decides the prompts"),
    ):
        latency.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )
    _output_json(latency)


def _engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help=MODEL)
    for add_group in (add_model, add_cache, add_schedule):
        add_group(parser)
    group = parser.add_argument_group("machines", "ranks, devices")
    more = "ranks that share one model; more than one need --executor ray (default: %(default)s)"
    TENSOR_PARALLEL_SIZE.add(group, help=more)
    add_device(group)
    EXECUTOR.add(
        group,
        default="local",
        help="local: this process; ray: actors (default: %(default)s)",
    )


def _server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server", "what is put under load")
    group.add_argument(
        "--backend",
        choices=tuple(ENDPOINTS),
        default="openai",
        help="openai and vllm for completions, openai-chat for chats (default: %(default)s)",
    )
    group.add_argument("--base-url", metavar="URL", help="the server (default: --host and --port)")
    group.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    group.add_argument("--port", type=port, default=8000, help="default: %(default)s")
    group.add_argument("--endpoint", metavar="PATH", help="default: what the backend has")
    group.add_argument(
        "--header", nargs="*", metavar="KEY=VALUE", help="headers to send with each request"
    )
    group.add_argument(
        "--insecure", action="store_true", help="take any certificate (default: off)"
    )
    group.add_argument(
        "--model", metavar="NAME", help="name of the model (default: the first the server lists)"
    )
    group.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="its name in requests, where --model says where its tokenizer is (default: --model)",
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="directory or hub model whose tokenizer is the server's (default: that of the model, "
        "where this machine has it)",
    )
    group.add_argument(
        "--skip-tokenizer-init", action="store_true", help="do without one (default: off)"
    )
    group.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0,
        metavar="SECONDS",
        help="how long to wait for a server that starts (default: %(default)s)",
    )
    group.add_argument("--extra-body", type=json_object, metavar="JSON", help="fields to send too")


def _dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests", "what is asked")
    DATASET_NAME.add(group, choices=DATASETS, default="random")
    DATASET_PATH.add(
        group,
        help="the trace (.gz too), ShareGPT's JSON, a CSV of lengths, or JSON lines with prompt "
        "and output_tokens; sharegpt without a file draws lengths by the means of the "
        "PagedAttention paper",
    )
    NUM_PROMPTS.add(group, default=1000, help="default: %(default)s")
    SEED.add(group)
    group.add_argument("--input-len", type=int, metavar="TOKENS", help="of prompts that are random")
    group.add_argument("--output-len", type=int, metavar="TOKENS", help="of all answers")
    group.add_argument(
        "--disable-shuffle", action="store_true", help="keep the file's order (default: off)"
    )
    group.add_argument(
        "--no-oversample",
        action="store_true",
        help="rather fewer requests than one twice, where the file has too few (default: off)",
    )
    group.add_argument(
        "--skip-chat-template",
        action="store_true",
        help="send a custom prompt as it stands (default: off)",
    )
    RANDOM_INPUT_LEN.add(group)
    RANDOM_OUTPUT_LEN.add(group)
    for flag, default, text in (
        ("--random-prefix-len", 0, "random: tokens that all prompts begin with, on top"),
        ("--prefix-repetition-prefix-len", 256, "prefix_repetition: tokens of a prefix"),
        ("--prefix-repetition-suffix-len", 256, "prefix_repetition: tokens after it"),
        ("--prefix-repetition-num-prefixes", 10, "prefix_repetition: how many prefixes"),
        ("--prefix-repetition-output-len", 128, "prefix_repetition: tokens of an answer"),
        ("--custom-output-len", 256, "custom: tokens of an answer, -1 for output_tokens"),
    ):
        group.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)"
        )
    group.add_argument(
        "--random-range-ratio",
        default="0.0",
        metavar="RATIO",
        help="random: how far lengths go below and above, 0 to 1, or JSON with input and output "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--sharegpt-output-len", type=int, metavar="N", help="sharegpt: tokens of an answer"
    )
    CHUNK_HASH_SIZE.add(
        group,
        help="tokens that a hash id stands for (default: 512 for mooncake, 16 for timed_trace)",
    )
    group.add_argument(
        "--timed-trace-sec-multiplier",
        type=float,
        metavar="SECONDS",
        help="unit of timestamps (default: 0.001 for mooncake, 1 for timed_trace)",
    )


def _traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic", "when requests are sent")
    REQUEST_RATE.add(group, default=float("inf"))
    BURSTINESS.add(group)
    group.add_argument(
        "--max-concurrency", type=int, metavar="N", help="requests in flight (default: any number)"
    )
    group.add_argument(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        help="send at the times of the trace (default: for azure, mooncake and timed_trace, unless "
        "a rate is given)",
    )
    group.add_argument(
        "--trace-speed",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="how many times as fast a trace is sent (default: %(default)s)",
    )
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"))
    group.add_argument("--ramp-up-start-rps", type=float, metavar="RATE")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="RATE")
    group.add_argument(
        "--num-warmups",
        type=int,
        default=0,
        metavar="N",
        help="requests before those that count (default: %(default)s)",
    )


def _sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "unasked, what the server has for a default")
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="answers of exactly the length asked for (default: off)",
    )
    group.add_argument(
        "--prompt-format",
        choices=PROMPT_FORMATS,
        help="how prompts that are made up are sent: as token ids, which share exactly what they "
        "should, or as text (default: ids for completions, text for chats)",
    )
    for name in ("temperature", "top-p", "min-p"):
        group.add_argument(f"--{name}", type=float)
    group.add_argument("--top-k", type=int)
    for name in ("frequency-penalty", "presence-penalty", "repetition-penalty"):
        group.add_argument(f"--{name}", type=float)


def _results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results", "what is told, and kept")
    group.add_argument(
        "--percentile-metrics",
        metavar="NAMES",
        help=f"with commas between, of {', '.join(METRICS)} (default: all but the last)",
    )
    group.add_argument(
        "--metric-percentiles",
        default="99",
        metavar="NUMBERS",
        help="with commas between (default: %(default)s)",
    )
    GOODPUT.add(group)
    group.add_argument("--save-result", action="store_true", help="write JSON (default: off)")
    group.add_argument(
        "--save-detailed",
        action="store_true",
        help="what each request got too (default: off)",
    )
    group.add_argument(
        "--append-result", action="store_true", help="add to the file (default: off)"
    )
    group.add_argument("--result-dir", metavar="DIR", help="default: here")
    group.add_argument("--result-filename", metavar="NAME", help="default: by backend, rate, model")
    group.add_argument("--label", help="begins the file's name (default: the backend)")
    group.add_argument("--metadata", nargs="*", metavar="KEY=VALUE", help="to be saved too")
    group.add_argument("--plot", metavar="FILE.png", help="draw the run; needs octavo[bench]")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar (default: off)")


def _output_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output-json", metavar="FILE", help="write the figures there")
