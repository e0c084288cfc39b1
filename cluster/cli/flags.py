"""The command line: names, groups, defaults and explanations. Names are vLLM's where it has one."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from typing import TypeAlias, get_args

from octavo.cluster.cli.access_flags import add_access
from octavo.cluster.cli.bench_flags import add_bench
from octavo.cluster.cli.chat_flags import add_chat_flags
from octavo.cluster.cli.journal_flags import add_journal_commands, add_journal_flags
from octavo.cluster.cli.lora_flags import add_lora_flags
from octavo.cluster.cli.simulate_flags import add_simulate
from octavo.cluster.cli.sizes import parse_bytes
from octavo.cluster.cli.top_flags import add_top
from octavo.cluster.config import PlacementStrategy
from octavo.scheduler.config import Allocation, PreemptionMode
from octavo.workers.config import CACHE_DTYPES, DEVICES, DTYPES, MODEL_IMPLS, QUANTIZATIONS

SERVE_EPILOG = """\
examples:
  octavo serve                                   the embedded model on http://127.0.0.1:8000
  octavo serve ./Qwen3-0.6B -tp 2 --port 9000    two ranks a replica
  octavo serve Qwen/Qwen3-0.6B --api-key secret --host 0.0.0.0
"""

DEPLOY_EPILOG = """\
example of a CONFIG with two models behind one URL; what a request calls `model` decides:

  applications:
  - import_path: octavo.cluster.distributed.application:app
    args:
      models:
      - model: Qwen/Qwen3-0.6B
        num_replicas: 2
      - model: /models/mistral-7b
        tensor_parallel_size: 2

A model takes the flags of `octavo serve` that concern a model, with underscores.
"""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of one call. Prints and exits by itself on --help, --version and mistakes
    (exit code 2), as every command does."""
    return _parser().parse_args([_spelling(argument) for argument in argv])


def _spelling(argument: str) -> str:
    """`--max_model_len` is understood too."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Serves language models from a paged, prefix-shared cache on Ray.",
        allow_abbrev=False,
    )
    version = importlib.metadata.version("octavo")
    parser.add_argument("--version", action="version", version=f"octavo {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model behind the OpenAI API",
        description="Serves a model behind the OpenAI API until Ctrl-C.",
        epilog=SERVE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory in Hugging Face's layout, or a name on the hub "
        "(default: the embedded SmolLM2-135M-Instruct)",
    )
    model = (_model, add_chat_flags, add_lora_flags)
    for add_group in (_front, add_access, *model, _cache, _schedule, _machines):
        add_group(serve)
    add_journal_flags(serve, _size)
    _deploy(commands)
    _status(commands)
    add_journal_commands(commands)
    add_bench(commands, (_model, _cache, _schedule), add_device)
    add_simulate(commands)
    add_top(commands)
    return parser


def _deploy(commands: Commands) -> None:
    deploy = commands.add_parser(
        "deploy",
        help="serve what a Serve config file names on a running Ray cluster",
        description="Makes a running Ray cluster serve exactly what a Serve config file names, as\n"
        "`serve deploy` does, and waits until it does. Applications that the file does not\n"
        "name are removed.",
        epilog=DEPLOY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    deploy.add_argument("config", metavar="CONFIG", help="a YAML file, see below")
    _dashboard(deploy)
    deploy.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until all models are healthy (default: on)",
    )
    deploy.add_argument(
        "--timeout",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="how long to wait; the cluster goes on trying after it (default: %(default)g)",
    )


def _status(commands: Commands) -> None:
    status = commands.add_parser(
        "status",
        help="show the models of a running Ray cluster",
        description="Shows each model of a running Ray cluster with its replicas and their health. "
        "Exit code 0 if all are healthy, 1 if not.",
        allow_abbrev=False,
    )
    _dashboard(status)
    status.add_argument("--json", action="store_true", help="all there is to say, for programs")


def _dashboard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_DASHBOARD_ADDRESS", "http://127.0.0.1:8265"),
        help="the cluster's dashboard (default: $RAY_DASHBOARD_ADDRESS, or %(default)s)",
    )


def _front(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("front", "where clients find the server")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for all interfaces (default: %(default)s)",
    )
    group.add_argument("--port", type=_port, default=8000, help="default: %(default)s")
    group.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may use; answers carry the first (default: the model's name)",
    )


def _model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="data type to compute in; auto is the checkpoint's (default: %(default)s)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=CACHE_DTYPES,
        default="auto",
        help="data type of kept keys and values; auto is the one computed in, fp8 holds twice as "
        "many tokens on a GPU, for answers that differ a little (default: %(default)s)",
    )
    group.add_argument(
        "--quantization",
        "-q",
        choices=QUANTIZATIONS,
        help="make the layers' weights int8, or on a GPU fp8, while loading: half the memory of "
        "bfloat16 and quicker steps of few sequences, for answers that differ a little (default: "
        "as in the checkpoint)",
    )
    group.add_argument(
        "--model-impl",
        choices=MODEL_IMPLS,
        default="auto",
        help="whose definition of the model computes: octavo's own, which is faster, or "
        "transformers', which has most decoders; auto takes the own one where there is one "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's own)",
    )
    group.add_argument(
        "--seed",
        type=int,
        help="answers requests that bring no seed repeatably: the same requests in the same order "
        "get the same random numbers (default: fresh ones each time)",
    )


def _cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache", "memory for keys and values")
    group.add_argument(
        "--block-size",
        type=int,
        default=16,
        metavar="TOKENS",
        help="tokens a block, a power of two (default: %(default)s)",
    )
    group.add_argument(
        "--num-gpu-blocks-override",
        type=int,
        metavar="BLOCKS",
        help="number of blocks, on any device (default: what fits)",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=_size,
        metavar="SIZE",
        help="cache size a rank, such as 2GiB or 512MB (default: a share of the free memory)",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="share of a GPU's memory that model and cache may take (default: %(default)s)",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="share the blocks of equal prefixes between requests (default: on)",
    )
    group.add_argument(
        "--swap-space",
        type=float,
        metavar="GIB",
        help="host memory a rank for blocks that the device has no room for, in GiB; 0 for none "
        "(default: up to 4, as the machine's memory allows)",
    )
    group.add_argument(
        "--allocation",
        choices=get_args(Allocation),
        default="paged",
        help="paged takes blocks as they are needed; the others reserve them at admission, for "
        "comparison: max for --max-model-len, pow2 for the prompt and the answer's length rounded "
        "up to a power of two, oracle for what will be used; they turn prefix caching off "
        "(default: %(default)s)",
    )


def _schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling")
    group.add_argument(
        "--max-num-seqs",
        type=int,
        default=256,
        metavar="N",
        help="sequences that run at once (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="TOKENS",
        help="tokens computed a step (default: 256 on the CPU, 2048 on CUDA)",
    )
    group.add_argument(
        "--max-num-queued-reqs",
        type=int,
        default=1024,
        metavar="N",
        help="requests that may wait; more get 503 and Retry-After (default: %(default)s)",
    )
    group.add_argument(
        "--preemption-mode",
        choices=get_args(PreemptionMode),
        default="auto",
        help="what becomes of a preempted request's blocks: recompute them later, swap them to the "
        "host, or the quicker of the two each time (default: %(default)s)",
    )
    group.add_argument(
        "--watermark-low",
        type=float,
        default=0.04,
        metavar="SHARE",
        help="below this share of free blocks no request is admitted (default: %(default)s)",
    )
    group.add_argument(
        "--watermark-high",
        type=float,
        default=0.08,
        metavar="SHARE",
        help="admission resumes at this share of free blocks (default: %(default)s)",
    )


def _machines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machines", "processes, ranks, devices")
    group.add_argument(
        "--tensor-parallel-size",
        "-tp",
        type=int,
        default=1,
        metavar="N",
        help="ranks that share one model (default: %(default)s)",
    )
    group.add_argument(
        "--num-replicas",
        type=int,
        default=1,
        metavar="N",
        help="copies of the model, each with its own ranks and cache (default: %(default)s)",
    )
    group.add_argument(
        "--placement-group-strategy",
        choices=get_args(PlacementStrategy),
        default="STRICT_PACK",
        help="where the ranks of one replica may be: STRICT_PACK on one node, PACK on as few as "
        "possible, SPREAD on as many as possible (default: %(default)s)",
    )
    group.add_argument(
        "--failover-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a request waits for a replica, where its own has died or none is up, before "
        "it fails (default: %(default)g)",
    )
    add_device(group)
    group.add_argument(
        "--executor",
        choices=("ray", "local"),
        default="ray",
        help="ray: actors and Ray Serve; local: one process without Ray (default: %(default)s)",
    )
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="join this Ray cluster, auto for the one on this machine (default: start one)",
    )
    group.add_argument(
        "--ray-dashboard",
        action="store_true",
        help="start Ray's dashboard on 127.0.0.1 too (default: off)",
    )


def add_device(group: argparse._ArgumentGroup) -> None:
    """What a rank computes with."""
    group.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="auto is cuda where there is a GPU (default: %(default)s)",
    )
    group.add_argument(
        "--enforce-eager",
        action="store_true",
        help="record no CUDA graphs: less memory and a quicker start, but slower steps of few "
        "sequences (default: off)",
    )
    group.add_argument(
        "--cuda-graph-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of sequences for which decode steps are recorded as CUDA graphs; one number "
        "is the largest of the usual ones (default: up to 512)",
    )
    group.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="CPU threads a rank (default: an even share of this machine's cores)",
    )


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port; give a number between 1 and 65535"
        )
    return int(text)
