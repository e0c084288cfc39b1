"""The flags of `octavo top`."""

from __future__ import annotations

import argparse
import os


def add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags."""
    top = commands.add_parser(
        "top",
        help="watch a running server in the terminal",
        description="Shows what a running server does: its pools of blocks, queues, rates, "
        "replicas and requests. Ctrl-C ends it.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="the server (default: %(default)s)",
    )
    top.add_argument(
        "--admin-api-key",
        default=os.environ.get("OCTAVO_ADMIN_API_KEY"),
        metavar="KEY",
        help="the server's, to see single requests where it asks for keys (default: "
        "$OCTAVO_ADMIN_API_KEY)",
    )
    top.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="between two looks (default: %(default)g)",
    )
    top.add_argument(
        "--once",
        action="store_true",
        help="look twice, an interval apart, print what was seen and end, for scripts",
    )
