"""The client over replicas, with a handle in place of Serve's: real mailboxes, no processes."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayError,
    RayTaskError,
    TaskCancelledError,
)
from ray.serve.exceptions import BackPressureError

from octavo.cluster.distributed import remote, rollcall
from octavo.cluster.distributed.mailbox import Outbox
from octavo.cluster.distributed.remote import RemoteClient
from octavo.cluster.distributed.wire import (
    Begun,
    Held,
    Snapshot,
    Taken,
    Tokens,
    encode,
    encode_error,
)
from octavo.cluster.routing.route import Route
from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.config import Capacity
from octavo.scheduler.digest import Digest
from octavo.scheduler.errors import EngineDead, QueueFull, RequestFailed
from octavo.scheduler.events import StepEvents
from octavo.scheduler.hashing import extend_chain, root_hash
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.scripted import until

TASK_FAILED: Any = cast(Any, RayTaskError)("generate", "trace", ValueError("odd"))


def snapshot(name, fault=None):
    return Snapshot(
        EngineStats(name, Capacity(9, 16), 64, 4, 1, 0, 2, 3, 7, 0.0, fault, Measured())
    )


class Call:
    """What Serve returns for a call: to be awaited, and to be ended by a test."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.outcome = asyncio.get_running_loop().create_future()
        self.cancelled = False

    def __await__(self):
        return self.outcome.__await__()

    def cancel(self):
        self.cancelled = True
        if not self.outcome.done():
            self.outcome.set_exception(TaskCancelledError())

    async def results_async(self, **_):
        return []


class Method:
    def __init__(self):
        self.calls = []

    def remote(self, *arguments):
        self.calls.append(Call(arguments))
        return self.calls[-1]


class Handle:
    """A deployment's handle. `attached` counts the rounds of `attach`, and `unknown` is of the last
    one."""

    def __init__(self):
        self.generate = Method()
        self.attached = 0
        self.unknown = None

    def broadcast(self, method, *arguments):
        if method == "attach":
            self.attached += 1
            _, self.unknown = arguments
        return Call(arguments)


class World:
    """A client, its handle, and a way into its mailbox. `async with`."""

    async def __aenter__(self):
        self.handle = Handle()
        self.client = RemoteClient(self.handle, "127.0.0.1")
        self.outbox = Outbox(self.client._inbox.address)
        self.client.start()
        self.readers = []
        return self

    async def __aexit__(self, *_):
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        await self.client.stop()
        self.outbox.close(linger_ms=0)

    def send(self, *messages):
        for message in messages:
            self.outbox.send(encode(message))

    async def hear(self, *names):
        self.send(*map(snapshot, names))
        await until(lambda: {each.replica for each in self.client.stats()} >= set(names))

    def ask(self, name, prompt=(1,)):
        """A task with the tokens of a request."""

        async def read():
            request = Request(name, list(prompt), SamplingParams(seed=0))
            return [token async for e in self.client.generate(request) for token in e.tokens]

        self.readers.append(asyncio.create_task(read()))
        return self.readers[-1]

    async def asked(self, name, replica, begun=True):
        """The same, once a replica has taken it, and perhaps begun to run it."""
        if replica not in {each.replica for each in self.client.stats()}:
            await self.hear(replica)
        task = self.ask(name)
        await until(lambda: name in self.client._live)
        self.send(Taken(replica, name), *([Begun([name])] if begun else []))
        live = self.client._live[name]
        await until(lambda: (live.replica, live.begun) == (replica, begun))
        return task

    def call(self, number):
        return self.handle.generate.calls[number]


async def lost(task):
    """The error of a request that ended with its replica."""
    with pytest.raises(EngineDead) as caught:
        await asyncio.wait_for(task, 3)
    return caught.value


def run(test):
    async def bounded():
        async with asyncio.timeout(15), World() as world:
            await test(world)

    asyncio.run(bounded())


def test_tokens_come_by_mail_and_the_call_is_left_to_end():
    async def test(world):
        task = await world.asked("a", "r")
        world.send(
            Tokens(StepEvents([TokenEvent("a", [5])])),
            Tokens(StepEvents([TokenEvent("a", [6], Finish.STOP)])),
        )
        assert await task == [5, 6]
        assert not world.call(0).cancelled and not world.client._live

    run(test)


def test_with_a_dead_replica_all_its_requests_end_at_once_and_name_it():
    async def test(world):
        await world.hear("r", "s")
        first, second = await world.asked("a", "r"), await world.asked("b", "r")
        other = await world.asked("c", "s")
        world.call(0).outcome.set_exception(ActorDiedError())
        assert (await lost(first)).replica == (await lost(second)).replica == "r"
        assert not other.done() and world.call(1).cancelled
        assert [each.replica for each in world.client.stats()] == ["s"]
        world.ask("d")
        await until(lambda: len(world.handle.generate.calls) == 4)
        assert world.call(0).arguments[2].avoided == ()
        last = world.call(3).arguments[2]
        assert last.avoided == ("r",) and last.chosen == "s"

    run(test)


def test_a_replica_that_says_that_it_is_dead_is_believed():
    async def test(world):
        await world.hear("r")
        task = await world.asked("a", "r")
        world.send(Tokens(StepEvents([TokenEvent("a", [5])])), snapshot("r", "rank 1 died"))
        error = await lost(task)
        assert (error.message, error.replica) == ("rank 1 died", "r")
        assert world.client.fault() == "no replica is up; the last one's reason: rank 1 died"

    run(test)


def test_a_dropped_request_names_the_replica_that_had_taken_it():
    async def test(world):
        task = await world.asked("a", "r")
        world.send(Tokens(StepEvents([TokenEvent("a", [], Finish.ABORT, error="rank 1 died")])))
        error = await lost(task)
        assert (error.message, error.replica) == ("rank 1 died", "r")

    run(test)


def test_a_request_that_never_ran_is_not_blamed():
    async def test(world):
        task = await world.asked("a", "r", begun=False)
        world.send(snapshot("r", "rank 1 died"))
        error = await lost(task)
        assert (error.message, error.replica) == ("rank 1 died", "")

    run(test)


def test_a_refusal_by_a_dead_replica_is_no_death_but_buries_it():
    async def test(world):
        await world.hear("r")
        task = world.ask("a")
        await until(lambda: world.handle.generate.calls)
        world.call(0).outcome.set_result(encode_error(EngineDead("its scheduler died", "r")))
        error = await lost(task)
        assert (error.message, error.replica) == ("its scheduler died", "")
        assert world.client.stats() == []

    run(test)


def test_a_silent_replica_loses_its_requests(monkeypatch):
    monkeypatch.setattr(rollcall, "FRESH_SECONDS", 0.3)

    async def test(world):
        await world.hear("r")
        task = await world.asked("a", "r")
        error = await lost(task)
        assert "nothing is heard of replica r" in error.message and error.replica == "r"
        assert world.call(0).cancelled
        await world.hear("r")
        assert world.client._roll.avoided(asyncio.get_running_loop().time()) == []

    run(test)


def test_a_replica_that_hangs_up_loses_its_requests_at_once_and_counts_when_it_is_back():
    async def test(world):
        world.send(snapshot("stays"))
        goes = Outbox(world.client._inbox.address)
        goes.send(encode(snapshot("goes")))
        await until(lambda: len(world.client.stats()) == 2)
        kept, moved = await world.asked("a", "stays"), world.ask("b")
        await until(lambda: "b" in world.client._live)
        goes.send(encode(Taken("goes", "b")))
        goes.close()
        error = await lost(moved)
        assert error.message == "replica goes has hung up" and not kept.done()
        assert [each.replica for each in world.client.stats()] == ["stays"]
        await world.hear("stays", "goes")

    run(test)


def test_what_no_replica_takes_is_given_back_in_time(monkeypatch):
    monkeypatch.setattr(remote, "UNTAKEN_SECONDS", 0.3)

    async def test(world):
        taken = await world.asked("b", "r")
        error = await lost(world.ask("a"))
        assert (error.message, error.replica) == ("no replica took the request", "")
        assert world.call(1).cancelled and not taken.done()

    run(test)


@pytest.mark.parametrize(
    ("raised", "kind", "counts"),
    [
        (ActorDiedError(), EngineDead, False),
        (ActorUnavailableError("away", None), EngineDead, True),
        (TaskCancelledError(), EngineDead, True),
        (RayError("lost"), EngineDead, True),
        (asyncio.CancelledError(), EngineDead, True),
        (BackPressureError(1, 1), QueueFull, True),
        (TASK_FAILED, RequestFailed, True),
        (TypeError("odd"), RequestFailed, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_how_a_call_can_end(raised, kind, counts):
    """Only a replica that is certain to be dead does not count any more."""

    async def test(world):
        await world.hear("r")
        task = await world.asked("a", "r")
        world.call(0).outcome.set_exception(raised)
        with pytest.raises(kind):
            await asyncio.wait_for(task, 3)
        assert bool(world.client.stats()) == counts

    run(test)


def test_a_lonely_ingress_looks_for_replicas_at_once():
    async def test(world):
        await world.hear("r")
        rounds = world.handle.attached
        await asyncio.sleep(0.3)
        assert world.handle.attached <= rounds + 1, "all is well"
        rounds = world.handle.attached
        world.send(snapshot("r", "rank 1 died"))
        await until(lambda: world.handle.attached > rounds + 1)

    run(test)


def test_late_tokens_of_a_lost_attempt_go_nowhere():
    async def test(world):
        task = await world.asked("a", "r")
        world.call(0).outcome.set_exception(ActorDiedError())
        await lost(task)
        again = await world.asked("a~1", "s")
        world.send(Tokens(StepEvents([TokenEvent("a", [5]), TokenEvent("a~1", [6], Finish.STOP)])))
        assert await again == [6]

    run(test)


def test_an_ingress_that_was_away_itself_reads_its_mail_first(monkeypatch):
    monkeypatch.setattr(rollcall, "FRESH_SECONDS", 0.8)

    async def test(world):
        task = await world.asked("a", "r")
        world.send(snapshot("r"))
        time.sleep(1.2)  # nothing else runs meanwhile
        await asyncio.sleep(0.3)
        assert not task.done()
        world.send(Tokens(StepEvents([TokenEvent("a", [5], Finish.STOP)])))
        assert await task == [5]

    run(test)


def held(replica, names, number=1, whole=True):
    return Held(replica, Digest(number, whole, "", 16, 1, b"".join(name[:8] for name in names)))


def test_a_request_is_meant_for_the_replica_that_holds_its_prefix():
    async def test(world):
        prompt = list(range(40))
        chain = []
        extend_chain(chain, root_hash("", "", ""), prompt, 16)
        world.send(held("r", chain), held("s", []))
        await world.hear("r", "s")
        world.ask("a", prompt)
        await until(lambda: world.handle.generate.calls)
        assert world.call(0).arguments[2] == Route((), "r", 32, "prefix")

    run(test)


def test_a_replica_that_missed_a_digest_is_asked_for_all_of_it(monkeypatch):
    monkeypatch.setattr(remote, "ATTACH_SECONDS", 0.05)

    async def test(world):
        world.send(held("r", []))
        await world.hear("r")
        await until(lambda: world.handle.unknown == [])
        world.send(held("r", [], number=3, whole=False))
        await until(lambda: world.handle.unknown == ["r"])

    run(test)


def test_after_a_call_that_failed_the_next_attempt_goes_elsewhere():
    """It is not certain that the replica is dead: it counts again when it is heard again."""

    async def test(world):
        await world.hear("r", "s")
        task = world.ask("a")
        await until(lambda: world.handle.generate.calls)
        first = world.call(0).arguments[2].chosen
        world.call(0).outcome.set_exception(ActorUnavailableError("away", None))
        await lost(task)
        for number in range(1, 4):
            world.ask(f"a~{number}")
            await until(lambda number=number: len(world.handle.generate.calls) > number)
            assert world.call(number).arguments[2].chosen not in ("", first)
        await world.hear(first)
        await until(lambda: not world.client._routing._replicas[first].suspect)

    run(test)
