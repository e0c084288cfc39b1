"""Minutes of chaos: load, kills, scale events, clients that hang up, and an oracle that knows each
answer. `make soak DURATION=600`, or

    python -m tests.chaos.soak [--duration SECONDS] [--seed N] [--kinds worker "stopped worker" …]
                               [--nodes 2]

Exit code 0: no call failed, none was answered wrongly, the cluster came back whole and idle, and no
part that lived through the second half grew. In the first half any process of a kind may be hit; in
the second half one replica of two ranks lives on, so that its memory can be watched.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.chaos.cluster import LONE, PAIR, Victim
from tests.chaos.havoc import KINDS, MORE_KINDS, NODE, Havoc
from tests.chaos.load import Load
from tests.chaos.memory import Memory
from tests.chaos.questions import answer_all, draw
from tests.tiny import make_tiny

CLIENTS = 8
EACH = 4  # questions of a kind
SAY_SECONDS = 10.0
GROWTH = 0.05
WARM_SECONDS = 60.0
MOST_TIES = 0.05  # of the questions
LASTING = ("head", "controller", "proxy", "ingress")
OF_A_REPLICA = ("replica", "scheduler", "worker")


class Soak:
    """One run against a cluster that is up. `seconds` are those of the chaos alone."""

    def __init__(self, victim: Victim, load: Load, havoc: Havoc, seconds: float) -> None:
        self.memory = Memory()
        self.problems: list[str] = []
        self._victim = victim
        self._load = load
        self._havoc = havoc
        self._seconds = seconds
        self._veteran: set[psutil.Process] = set()

    async def run(self, kill_seconds: float, scale_seconds: float) -> None:
        began = time.monotonic()
        loading = asyncio.create_task(self._load.run(CLIENTS))
        work = [
            asyncio.create_task(self._havoc.kill(kill_seconds)),
            asyncio.create_task(self._havoc.scale(scale_seconds)),
            asyncio.create_task(self._watch(began)),
        ]
        try:
            first = asyncio.FIRST_COMPLETED  # none of them ends by itself
            await asyncio.wait([*work, loading], timeout=self._seconds, return_when=first)
        finally:
            for task in work:
                task.cancel()
            ends = await asyncio.gather(*work, return_exceptions=True)
            self._load.stop()
        self.problems += [repr(end) for end in ends if isinstance(end, Exception)]
        await loading
        try:
            await self._victim.settle()
        except AssertionError as error:
            self.problems.append(str(error))

    async def _watch(self, began: float) -> None:
        """Says how it goes, and weighs the parts in the second half."""
        told = 0
        while True:
            await asyncio.sleep(SAY_SECONDS)
            elapsed = time.monotonic() - began
            there = await asyncio.to_thread(self._victim.processes)
            if elapsed > self._seconds / 2:
                if not self._veteran:
                    self._veteran = await self._victim.oldest_replica()
                    self._havoc.spared = self._veteran
                for role in LASTING:
                    self._weigh(role, there.get(role, []))
                for role in OF_A_REPLICA:
                    own = [each for each in there.get(role, []) if each in self._veteran]
                    self._weigh(role, own)
            counts = ", ".join(f"{n} {what}" for what, n in sorted(self._load.tally.counts.items()))
            kills = ", ".join(f"{n} {kind}" for kind, n in sorted(self._havoc.kills.items()))
            say(f"{elapsed:4.0f} s  {counts}; killed: {kills}; scaled {self._havoc.scales}")
            for fault in self._load.tally.faults[told:]:
                say(f"        {fault}")
            told = len(self._load.tally.faults)

    def _weigh(self, role: str, processes: list[psutil.Process]) -> None:
        """Those that have done everything once: what is new to a process takes memory once."""
        now = time.time()
        if warm := [each for each in processes if now - each.create_time() > WARM_SECONDS]:
            self.memory.sample(role, warm)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def verdict(load: Load, havoc: Havoc, soak: Soak) -> list[str]:
    """What was not as it should be."""
    problems = list(soak.problems)
    if load.tally.bad:
        problems.append(f"{load.tally.bad} calls failed or were answered wrongly")
    if not load.tally.counts["right"]:
        problems.append("no call was answered")
    for role, (_, _, share, _) in soak.memory.growth().items():
        if share > GROWTH:
            problems.append(f"the memory of {role} grew by {share:.1%}")
    return problems


async def soak(arguments: argparse.Namespace, folder: Path) -> int:
    say(f"seed {arguments.seed}")
    model = make_tiny(folder / "model")
    questions = answer_all(draw(arguments.seed, EACH), model, folder / "oracle.log")
    say(f"the right answers of {len(questions)} questions are known")
    replicas = {PAIR: 2, LONE: 1}
    victim = await asyncio.to_thread(Victim, model, replicas, ingresses=2, nodes=arguments.nodes)
    try:
        await victim.start()
        say(f"the cluster is up at {victim.url}")
        havoc = Havoc(victim, arguments.seed, arguments.kinds)
        load = Load(
            victim.url, questions, list(victim.models), arguments.seed, havoc.took_an_ingress
        )
        ties = await load.leave_out_ties(CLIENTS)
        for tie in ties:
            say(f"left out, {tie}")
        run = Soak(victim, load, havoc, arguments.duration)
        if len(ties) > MOST_TIES * len(questions):
            run.problems.append(f"{len(ties)} questions were answered otherwise before any chaos")
        await run.run(arguments.kill_every, arguments.scale_every)
        problems = verdict(load, havoc, run)
    finally:
        await asyncio.to_thread(victim.end)
    print(f"seed {arguments.seed}, {arguments.duration:g} s, {CLIENTS} clients")
    for what, count in sorted(load.tally.counts.items()):
        print(f"{count:6} calls {what}")
    print(
        f"{len(ties):6} of {len(questions)} questions left out, as other ranks end sums otherwise"
    )
    print(f"longest right call: {load.tally.longest:.1f} s")
    for kind, count in sorted(havoc.kills.items()):
        print(f"{count:6} times hit: {kind}")
    print(f"{havoc.scales:6} scale events")
    for role, (first, last, share, count) in run.memory.growth().items():
        print(f"{role:>11} ({count}): {first >> 20} MiB to {last >> 20} MiB, {share:+.1%}")
    for fault in load.tally.faults:
        print(fault)
    print("\n".join(f"PROBLEM: {problem}" for problem in problems) or "all is well")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--kill-every", type=float, default=5.5, metavar="SECONDS")
    parser.add_argument(
        "--kinds", nargs="+", choices=MORE_KINDS, metavar="KIND", help=", ".join(MORE_KINDS)
    )
    parser.add_argument("--scale-every", type=float, default=45.0, metavar="SECONDS")
    parser.add_argument(
        "--nodes", type=int, default=2, help="beside the head, which then serves nothing"
    )
    arguments = parser.parse_args()
    if arguments.kinds is None:
        arguments.kinds = (*KINDS, NODE) if arguments.nodes > 1 else KINDS
    if NODE in arguments.kinds and arguments.nodes < 2:
        parser.error(f"--kinds {NODE} needs --nodes 2 or more, got {arguments.nodes}")
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(soak(arguments, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
