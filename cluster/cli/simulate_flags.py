"""The command line of `octavo simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias, get_args

from octavo.cluster.simulation.fleet import RoutingPolicy
from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED
from octavo.scheduler.config import Allocation, PreemptionMode

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

QUESTIONS = {
    "run": "one run: throughput, TTFT, TPOT, latency, preemptions",
    "fit": "what weights and cache take, how many requests fit (several --hardware: side by side)",
    "rate": "latency against the rate of arrivals: several --request-rate",
    "pool": "latency and preemptions against the size of the pool, and where the knee is",
    "block-size": "the same memory in blocks of other sizes: --block-sizes",
    "preemption": "swap against recompute: what one costs by length, and what all come to",
    "replicas": "how many replicas keep --goodput for a share of the requests",
    "routing": "ways of routing over several replicas: several --num-replicas",
}

DESCRIPTION = """\
Answers questions about a deployment before there is one: the scheduler and the router that serve
run under a virtual clock, and steps last as long as a roofline model of the hardware says. Nothing
is computed, no GPU, model or cluster is needed, and the same seed gives the same answer.
"""

EPILOG = """\
examples:
  octavo simulate fit qwen3-8b --hardware a100-40 h100 gb10
  octavo simulate rate llama-3.1-8b --hardware h100 --request-rate 5 10 20 40
  octavo simulate pool opt-13b --hardware a100-40 --dataset-name sharegpt --request-rate 2
  octavo simulate replicas qwen3-32b --hardware h200 --dataset-path azure_conv.csv \\
      --goodput ttft:500 tpot:40 --share 0.95
  octavo simulate routing qwen3-8b --hardware h100 --num-replicas 4 8 \\
      --dataset-path mooncake_conversation.jsonl

Shares of the peaks that kernels reach are guesses unless --hardware names a file of measured ones,
see benchmarks/calibrate.py. What is left out: the front (HTTP, tokenizing), failures, and where an
answer ends, which is the length that the workload says.
"""


def add_simulate(commands: Commands) -> None:
    parser = commands.add_parser(
        "simulate",
        help="plan: what fits, how fast, how many replicas; without a GPU",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    width = max(map(len, QUESTIONS))
    listed = "\n".join(f"  {name.ljust(width)}  {text}" for name, text in QUESTIONS.items())
    parser.description = f"{DESCRIPTION}\nQUESTION is one of\n{listed}\n"
    parser.add_argument("question", metavar="QUESTION", choices=tuple(QUESTIONS))
    parser.add_argument(
        "model",
        nargs="?",
        default="llama-3.1-8b",
        metavar="MODEL",
        help=f"{', '.join(NAMED)}, or a directory with a config.json (default: %(default)s)",
    )
    for add_group in (_devices, _workload, _engine, _answer):
        add_group(parser)


def _devices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--hardware",
        nargs="+",
        default=["h100"],
        metavar="NAME",
        help=f"{', '.join(PRESETS)}, or a JSON file of measured rates (default: h100)",
    )
    group.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=_positive,
        default=1,
        metavar="N",
        help="devices that share one model (default: %(default)s)",
    )
    group.add_argument(
        "--num-replicas",
        type=_positive,
        nargs="+",
        default=[1],
        metavar="N",
        help="copies of the model; `routing` takes several (default: 1)",
    )
    group.add_argument(
        "--routing",
        choices=get_args(RoutingPolicy),
        default="prefix",
        help="prefix: Octavo's own, by prefix and load; two-choices and round-robin: Ray Serve's "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of a device's memory for weights, steps and cache (default: %(default)s)",
    )
    group.add_argument(
        "--num-gpu-blocks-override",
        type=_positive,
        metavar="BLOCKS",
        help="blocks of one replica (default: what fits)",
    )
    group.add_argument(
        "--swap-space",
        type=float,
        default=4.0,
        metavar="GIB",
        help="host memory of each device for blocks, 0 for none (default: %(default)g)",
    )


def _workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--dataset-name",
        choices=("random", "sharegpt", "alpaca"),
        default="sharegpt",
        help="lengths drawn with the means of that data set, or with those of --random-input-len "
        "and --random-output-len (default: %(default)s)",
    )
    group.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="recorded requests instead: a trace of Azure, BurstGPT or Mooncake (whose hash_ids "
        "are shared prefixes), or a CSV file of prompt and answer lengths",
    )
    group.add_argument(
        "--random-input-len", type=_positive, default=1024, metavar="TOKENS", help="%(default)s"
    )
    group.add_argument(
        "--random-output-len", type=_positive, default=128, metavar="TOKENS", help="%(default)s"
    )
    group.add_argument(
        "--prefix-len",
        type=int,
        default=0,
        metavar="TOKENS",
        help="that all prompts of a group have in common, before their own (default: 0)",
    )
    group.add_argument(
        "--num-prefixes", type=_positive, default=1, metavar="N", help="groups (default: 1)"
    )
    group.add_argument(
        "--num-prompts",
        type=_positive,
        metavar="N",
        help="requests (default: all of a file, else 1000)",
    )
    group.add_argument(
        "--request-rate",
        type=_rate,
        nargs="+",
        metavar="RATE",
        help="arrivals a second, inf for all at once; `rate` takes several (default: the times of "
        "the file where it has them, else 1)",
    )
    group.add_argument(
        "--burstiness",
        type=_above_zero,
        default=1.0,
        metavar="X",
        help="1 is Poisson arrivals, less comes in bursts, more evenly (default: %(default)g)",
    )
    group.add_argument("--n", type=_positive, default=1, help="samples of each (default: 1)")
    group.add_argument("--beam-width", type=_positive, metavar="N", help="beams of each")
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")


def _engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine", "as for `octavo serve`")
    group.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's own, 16384 at most)",
    )
    group.add_argument("--block-size", type=_positive, default=16, metavar="TOKENS", help="16")
    group.add_argument("--max-num-seqs", type=_positive, default=256, metavar="N", help="256")
    group.add_argument(
        "--max-num-batched-tokens", type=_positive, default=2048, metavar="TOKENS", help="2048"
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="default: on",
    )
    group.add_argument("--preemption-mode", choices=get_args(PreemptionMode), default="auto")
    group.add_argument("--watermark-low", type=float, default=0.04, metavar="SHARE", help="0.04")
    group.add_argument("--watermark-high", type=float, default=0.08, metavar="SHARE", help="0.08")
    group.add_argument("--allocation", choices=get_args(Allocation), default="paged")


def _answer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="KEY:MS",
        help="objectives: any of ttft:MS, tpot:MS, e2el:MS (default for `replicas`: ttft:1000)",
    )
    group.add_argument(
        "--share",
        type=float,
        default=0.9,
        help="of the requests that must keep them, for `replicas` (default: %(default)g)",
    )
    group.add_argument(
        "--max-replicas", type=_positive, default=256, metavar="N", help="`replicas`: 256"
    )
    group.add_argument(
        "--pool-shares",
        type=_above_zero,
        nargs="+",
        default=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0],
        metavar="SHARE",
        help="`pool`: of the blocks that fit (default: 0.1 to 1)",
    )
    group.add_argument(
        "--block-sizes",
        type=_positive,
        nargs="+",
        default=[1, 2, 4, 8, 16, 32, 64, 128, 256],
        metavar="TOKENS",
        help="`block-size`: powers of two (default: 1 to 256)",
    )
    group.add_argument(
        "--lengths",
        type=_positive,
        nargs="+",
        default=[64, 128, 256, 512, 1024, 2048, 4096, 8192],
        metavar="TOKENS",
        help="`preemption`: of one sequence (default: 64 to 8192)",
    )
    group.add_argument(
        "--grain",
        type=_positive,
        default=1,
        metavar="TOKENS",
        help="simulate so many tokens as one, and so many steps as one: as much faster, but times "
        "to first tokens are too long by about as many steps; must divide --block-size",
    )
    group.add_argument("--save-result", metavar="FILE", help="the answer as JSON as well")


def _number(convert: Callable[[str], float], text: str, least: float, what: str) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = -1
    if not value > least:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _positive(text: str) -> int:
    return int(_number(int, text, 0, "a whole number above 0"))


def _above_zero(text: str) -> float:
    return _number(float, text, 0, "a number above 0")


def _rate(text: str) -> float:
    return _number(float, text, 0, "a number above 0, or inf")
