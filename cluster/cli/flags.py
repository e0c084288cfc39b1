"""The command line: names, groups, defaults and explanations. Names are vLLM's where it has one."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from typing import TypeAlias, get_args

from octavo.cluster.cli.access_flags import add_access
from octavo.cluster.cli.bench_flags import add_bench
from octavo.cluster.cli.chat_flags import add_chat_flags
from octavo.cluster.cli.engine_flags import (
    EXECUTOR,
    MODEL,
    NUM_REPLICAS,
    TENSOR_PARALLEL_SIZE,
    add_cache,
    add_device,
    add_model,
    add_schedule,
)
from octavo.cluster.cli.journal_flags import add_journal_commands, add_journal_flags
from octavo.cluster.cli.lora_flags import add_lora_flags
from octavo.cluster.cli.simulate_flags import add_simulate
from octavo.cluster.cli.top_flags import add_top
from octavo.cluster.cli.values import port
from octavo.cluster.config import PlacementStrategy

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
        help=MODEL,
    )
    model = (add_model, add_chat_flags, add_lora_flags)
    for add_group in (_front, add_access, *model, add_cache, add_schedule, _machines):
        add_group(serve)
    add_journal_flags(serve)
    _deploy(commands)
    _status(commands)
    add_journal_commands(commands)
    add_bench(commands)
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
    group.add_argument("--port", type=port, default=8000, help="default: %(default)s")
    group.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may use; answers carry the first (default: the model's name)",
    )


def _machines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machines", "processes, ranks, devices")
    TENSOR_PARALLEL_SIZE.add(group)
    NUM_REPLICAS.add(group)
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
    EXECUTOR.add(group, default="ray")
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
