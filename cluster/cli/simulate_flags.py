"""The command line of `octavo simulate`."""

from __future__ import annotations

import argparse
from typing import TypeAlias, get_args

from octavo.cluster.bench.names import OBJECTIVES
from octavo.cluster.cli.engine_flags import (
    ALLOCATION,
    BLOCK_SIZE,
    ENABLE_PREFIX_CACHING,
    GPU_MEMORY_UTILIZATION,
    MAX_MODEL_LEN,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    NUM_GPU_BLOCKS_OVERRIDE,
    NUM_REPLICAS,
    PREEMPTION_MODE,
    SWAP_SPACE,
    TENSOR_PARALLEL_SIZE,
    WATERMARK_HIGH,
    WATERMARK_LOW,
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
from octavo.cluster.cli.values import above_zero, positive, rate
from octavo.cluster.simulation.fleet import RoutingPolicy
from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED

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
    TENSOR_PARALLEL_SIZE.add(group, type=positive)
    NUM_REPLICAS.add(
        group,
        type=positive,
        nargs="+",
        default=[1],
        help="copies of the model; `routing` takes several (default: 1)",
    )
    group.add_argument(
        "--routing",
        choices=get_args(RoutingPolicy),
        default="prefix",
        help="prefix: Octavo's own, by prefix and load; two-choices and round-robin: Ray Serve's "
        "(default: %(default)s)",
    )
    GPU_MEMORY_UTILIZATION.add(group)
    NUM_GPU_BLOCKS_OVERRIDE.add(group, type=positive, help="of one replica (default: what fits)")
    SWAP_SPACE.add(
        group,
        default=4.0,
        help="host memory of each device for blocks, 0 for none (default: %(default)g)",
    )


def _workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    DATASET_NAME.add(
        group,
        choices=("random", "sharegpt", "alpaca"),
        default="sharegpt",
        help="lengths drawn with the means of that data set, or with those of --random-input-len "
        "and --random-output-len (default: %(default)s)",
    )
    DATASET_PATH.add(
        group,
        help="recorded requests instead: a trace of Azure, BurstGPT or Mooncake (whose hash_ids "
        "are shared prefixes), or a CSV file of prompt and answer lengths",
    )
    CHUNK_HASH_SIZE.add(
        group, type=positive, help="tokens that a hash id stands for (default: found out)"
    )
    RANDOM_INPUT_LEN.add(group, type=positive)
    RANDOM_OUTPUT_LEN.add(group, type=positive)
    group.add_argument(
        "--prefix-len",
        type=int,
        default=0,
        metavar="TOKENS",
        help="that all prompts of a group have in common, before their own (default: 0)",
    )
    group.add_argument(
        "--num-prefixes", type=positive, default=1, metavar="N", help="groups (default: 1)"
    )
    NUM_PROMPTS.add(group, type=positive, help="requests (default: all of a file, else 1000)")
    REQUEST_RATE.add(
        group,
        type=rate,
        nargs="+",
        help="arrivals a second, inf for all at once; `rate` takes several (default: the times of "
        "the file where it has them, else 1)",
    )
    BURSTINESS.add(group, type=above_zero)
    N.add(group, type=positive)
    group.add_argument("--beam-width", type=positive, metavar="N", help="beams of each")
    SEED.add(group)


def _engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine", "as for `octavo serve`")
    MAX_MODEL_LEN.add(
        group,
        type=positive,
        help="longest prompt and answer together (default: the model's own, 16384 at most)",
    )
    BLOCK_SIZE.add(group, type=positive)
    MAX_NUM_SEQS.add(group, type=positive)
    MAX_NUM_BATCHED_TOKENS.add(
        group, type=positive, default=2048, help="tokens computed a step (default: %(default)s)"
    )
    for flag in (ENABLE_PREFIX_CACHING, PREEMPTION_MODE, WATERMARK_LOW, WATERMARK_HIGH, ALLOCATION):
        flag.add(group)


def _answer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answer")
    GOODPUT.add(
        group,
        help=f"objectives, any of {', '.join(OBJECTIVES)} (default for `replicas`: ttft:1000)",
    )
    group.add_argument(
        "--share",
        type=float,
        default=0.9,
        help="of the requests that must keep them, for `replicas` (default: %(default)g)",
    )
    group.add_argument(
        "--max-replicas", type=positive, default=256, metavar="N", help="`replicas`: 256"
    )
    group.add_argument(
        "--pool-shares",
        type=above_zero,
        nargs="+",
        default=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0],
        metavar="SHARE",
        help="`pool`: of the blocks that fit (default: 0.1 to 1)",
    )
    group.add_argument(
        "--block-sizes",
        type=positive,
        nargs="+",
        default=[1, 2, 4, 8, 16, 32, 64, 128, 256],
        metavar="TOKENS",
        help="`block-size`: powers of two (default: 1 to 256)",
    )
    group.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[64, 128, 256, 512, 1024, 2048, 4096, 8192],
        metavar="TOKENS",
        help="`preemption`: of one sequence (default: 64 to 8192)",
    )
    group.add_argument(
        "--grain",
        type=positive,
        default=1,
        metavar="TOKENS",
        help="simulate so many tokens as one, and so many steps as one: as much faster, but times "
        "to first tokens are too long by about as many steps; must divide --block-size",
    )
    group.add_argument("--save-result", metavar="FILE", help="the answer as JSON as well")
