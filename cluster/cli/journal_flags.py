"""`octavo serve --journal`, and the two commands that read what it writes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from octavo.cluster.cli.values import size
from octavo.cluster.journal.settings import JOURNAL_BYTES


def add_journal_flags(parser: argparse.ArgumentParser) -> None:
    """The group "journal" of `octavo serve`."""
    group = parser.add_argument_group("journal", "what `octavo replay` and `octavo why` read")
    group.add_argument(
        "--journal",
        type=os.path.abspath,
        metavar="FILE",
        help="record what the scheduler was asked and what it planned; with Ray, one file a "
        "replica, FILE.REPLICA on its machine. It has the token ids of prompts and answers, and "
        "none of their text (default: off)",
    )
    group.add_argument(
        "--journal-max-bytes",
        type=size,
        default=JOURNAL_BYTES,
        metavar="SIZE",
        help="about how much of it is kept: when half of that is written it goes on in a new file, "
        "and FILE.1 is the one before (default: 256MiB)",
    )


def add_journal_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`octavo replay` and `octavo why`."""
    replay = commands.add_parser(
        "replay",
        help="make the plans of a journal again and compare them",
        description="Has the scheduler do again all that a journal of `octavo serve --journal` "
        "says, and compares plan by plan. Exit code 0 if all are equal, 1 with the first step "
        "that differs.",
        allow_abbrev=False,
    )
    why = commands.add_parser(
        "why",
        help="say from a journal why a request did not run",
        description="Says from a journal of `octavo serve --journal`, step by step, why a request "
        "did not run, and when it did.",
        allow_abbrev=False,
    )
    why.add_argument("request_id", metavar="REQUEST_ID", help="as in the answer, or its beginning")
    for each in (replay, why):
        each.add_argument("file", metavar="FILE", help="a journal; FILE.1 is read too")


def replay(arguments: argparse.Namespace) -> bool:
    """`octavo replay`: whether all plans are equal. Raises `JournalError`."""
    from octavo.cluster.journal.replay import replay

    equal = True
    for outcome in replay(Path(arguments.file)):
        made = f"{outcome.path}: {outcome.plans:,} plans for {outcome.requests:,} requests"
        version = "" if outcome.same_code else " (recorded by another version of the scheduler)"
        if outcome.difference is None:
            print(f"{made}, all equal{version}")
        else:
            print(f"{made} are equal, then {outcome.difference}{version}")
            equal = False
    return equal


def why(arguments: argparse.Namespace) -> None:
    """`octavo why`. Raises `JournalError`."""
    from octavo.cluster.journal.why import why

    print("\n".join(why(arguments.request_id, Path(arguments.file))))
