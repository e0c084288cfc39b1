"""Half a minute of chaos: `make soak` is the long form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.cluster import LONE, Victim
from tests.chaos.havoc import Havoc
from tests.chaos.load import Load
from tests.chaos.questions import Question, answer_all, draw
from tests.conftest import TinyModel

SEED = 5
CLIENTS = 6
PAUSE_SECONDS = 2.0
KINDS = ("worker", "scheduler", "replica")


def start(model: Path) -> Victim:
    victim = Victim(model, {LONE: 2}, ingresses=1)
    try:
        asyncio.run(victim.start())
    except BaseException:
        victim.end()
        raise
    return victim


@pytest.fixture(scope="module")
def world(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Victim, list[Question]]]:
    """A cluster that serves, started while the questions are answered that come with it."""
    model, log = tiny_model(), tmp_path_factory.mktemp("chaos") / "oracle.log"
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start, model)
        try:
            questions = answer_all(draw(SEED, each=1), model, log)
            yield starting.result(), questions
        finally:
            starting.result().end()


def test_no_call_fails_while_processes_die_and_replicas_come_and_go(
    world: tuple[Victim, list[Question]],
) -> None:
    victim, questions = world
    havoc = Havoc(victim, SEED)
    load = Load(victim.url, questions, victim.models, SEED, havoc.took_an_ingress)

    async def chaos() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            for kind in KINDS:
                await asyncio.sleep(PAUSE_SECONDS)
                await havoc.kill_one(kind)
            await havoc.scale_one(LONE, 3)
            await asyncio.sleep(PAUSE_SECONDS)
            await havoc.scale_one(LONE, 1)
            await asyncio.sleep(PAUSE_SECONDS)
            load.stop()
        await victim.settle()

    asyncio.run(chaos())
    assert not load.tally.faults
    assert load.tally.counts["right"] >= 10 and load.tally.counts["left by its client"]
    assert havoc.kills == dict.fromkeys(KINDS, 1)
