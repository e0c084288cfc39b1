"""The flags that say who may call, how safely, and for how long."""

from __future__ import annotations

import argparse


def add_access(parser: argparse.ArgumentParser) -> None:
    """The group "access" of `octavo serve`."""
    group = parser.add_argument_group("access", "who may call, how safely, and for how long")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a key that clients must send, may be repeated; each key has a prefix cache of its "
        "own (default: $OCTAVO_API_KEY, several separated by commas, or none and everyone may "
        "call)",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="more such keys, one a line; a change counts within a second, without a restart "
        "(default: $OCTAVO_API_KEY_FILE)",
    )
    group.add_argument(
        "--admin-api-key",
        metavar="KEY",
        help="turns on POST /reset_prefix_cache and /debug/..., for callers who send this key; the "
        "dashboard asks for it (default: $OCTAVO_ADMIN_API_KEY, or none: then they are off, but "
        "for what the dashboard shows where callers need no key either)",
    )
    group.add_argument(
        "--allowed-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web pages that may call, such as https://chat.example.com, or * for all "
        "(default: none, programs alone)",
    )
    group.add_argument(
        "--ssl-certfile",
        metavar="FILE",
        help="answer HTTPS with this certificate (PEM); a renewed one is taken without a restart "
        "(default: plain HTTP)",
    )
    group.add_argument(
        "--ssl-keyfile",
        metavar="FILE",
        help="the certificate's key (PEM, without a passphrase; default: in --ssl-certfile)",
    )
    group.add_argument(
        "--request-timeout",
        type=float,
        metavar="SECONDS",
        help="give a request up that takes longer, its answer included (default: never)",
    )
    group.add_argument(
        "--enable-log-requests",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write a line for each request, with its prompt; otherwise no log has any of it "
        "(default: off)",
    )
