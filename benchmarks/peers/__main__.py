"""Octavo beside its peers, turn by turn in one run: vLLM for the CPU, llama.cpp, transformers.

    cd benchmarks
    python -m peers
    python -m peers --peers vllm --workloads server stream

The same model (the embedded one, in bfloat16), the same prompts, the same number of threads. Peers
are installed first, into folders of their own. Markdown goes to standard output, progress to
standard error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from peers.client import WrongAnswer
from peers.processes import Failed
from peers.run import PEERS, Run
from peers.workloads import KEYS

from octavo.scheduler.errors import OctavoError


def default_folder() -> Path:
    """`octavo/peers` in the user's cache folder."""
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "octavo" / "peers"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="peers", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--workloads", nargs="+", choices=KEYS, default=KEYS)
    parser.add_argument(
        "--environments",
        type=Path,
        default=default_folder(),
        help="where peers are installed (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--slow-rounds",
        type=int,
        default=1,
        help="rounds of the sides that take minutes each (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, help="a file that the tables are also added to")
    parser.add_argument("--install-only", action="store_true", help="install, measure nothing")
    parser.add_argument(
        "--vllm-eager", action="store_true", help="start vLLM without compiling the model"
    )
    args = parser.parse_args()
    args.environments = args.environments.expanduser().absolute()
    return args


def main() -> int:
    args = parse()
    signal.signal(signal.SIGTERM, _leave)
    try:
        run = Run(args)
        if not args.install_only:
            run.everything()
    except (Failed, WrongAnswer, OctavoError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _leave(number: int, frame: object) -> NoReturn:
    """As Ctrl-C: everything that was started is ended on the way out."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
