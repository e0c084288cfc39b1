"""The command `octavo`. A user's mistake is one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from octavo.cluster.cli import flags, journal_flags
from octavo.cluster.cli.console import Console
from octavo.cluster.cli.deploy import deploy, status
from octavo.cluster.cli.plan_deployment import Deployment, plan_deployment
from octavo.cluster.distributed.ray_cluster import RayCluster
from octavo.scheduler.errors import InvalidRequest, OctavoError

OK, INTERNAL, USAGE, INTERRUPTED = 0, 1, 2, 130
POSITIONAL = ("model", "config", "journal")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 if all is well, 2 for what the user can mend, 1
    for what not."""
    arguments = flags.parse(list(sys.argv[1:] if argv is None else argv))
    console = Console()
    try:
        match arguments.command:
            case "deploy":
                deploy(arguments, console)
                return OK
            case "status":
                return OK if status(arguments) else INTERNAL
            case "replay":
                return OK if journal_flags.replay(arguments) else INTERNAL
            case "why":
                journal_flags.why(arguments)
                return OK
            case "bench":
                from octavo.cluster.bench.command import bench

                return OK if bench(arguments, console.say) else INTERNAL
            case "simulate":
                from octavo.cluster.cli.simulate import simulate

                simulate(arguments, console)
                return OK
            case "top":
                from octavo.cluster.cli.top import top

                top(arguments)
                return OK
            case _:
                return serve(arguments, console)
    except InvalidRequest as error:
        console.error(_with_flag(error))
        return USAGE
    except OctavoError as error:
        console.error(str(error))
        return INTERNAL
    except KeyboardInterrupt:
        return INTERRUPTED


def serve(arguments: argparse.Namespace, console: Console) -> int:
    """`octavo serve`: returns after a clean stop."""
    if arguments.address is None:
        check_port(arguments.host, arguments.port)
    deployment = plan_deployment(arguments, console.say)
    return asyncio.run(_serve_until_stopped(arguments, deployment, console))


def check_port(host: str, port: int) -> None:
    """Raises `InvalidRequest` where nothing could listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise InvalidRequest(
                "port",
                f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; "
                "choose another --port or --host, or stop what is using it",
            ) from None


async def _serve_until_stopped(
    arguments: argparse.Namespace, deployment: Deployment, console: Console
) -> int:
    stop = asyncio.Event()
    if arguments.executor == "local":
        from octavo.cluster.cli.launch_local import serve_locally

        _on_signals(stop, console, lambda: None)
        await serve_locally(deployment, console, stop)
    else:
        from octavo.cluster.cli.launch_ray import serve_on_ray

        cluster = RayCluster(arguments.address, arguments.ray_dashboard)
        _on_signals(stop, console, cluster.kill)
        await serve_on_ray(deployment, cluster, console, stop)
    console.say("stopped")
    return OK


def _on_signals(stop: asyncio.Event, console: Console, kill: Callable[[], None]) -> None:
    """The first Ctrl-C or SIGTERM asks, the second does not."""
    loop = asyncio.get_running_loop()

    def handle() -> None:
        if stop.is_set():
            console.say("killed")
            kill()
            os._exit(INTERRUPTED)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)


def _with_flag(error: InvalidRequest) -> str:
    """The message with the flag as the user types it."""
    flag = "--" + error.param.replace("_", "-")
    if error.param in POSITIONAL or flag in error.message:
        return error.message
    return error.message.replace(error.param, flag)


if __name__ == "__main__":
    sys.exit(main())
