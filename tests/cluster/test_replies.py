"""From an engine's events to the ingresses that asked: wire, mailboxes, leases."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest

from octavo.cluster.distributed.mailbox import Inbox
from octavo.cluster.distributed.notices import NoticeBoard, Notices
from octavo.cluster.distributed.replies import LEASE_SECONDS, Replies
from octavo.cluster.distributed.wire import (
    Begun,
    Snapshot,
    Taken,
    Tokens,
    decode_error,
    decode_message,
    decode_request,
    encode,
    encode_error,
)
from octavo.cluster.engine import Engine
from octavo.cluster.local import LocalWorkers
from octavo.cluster.stats import EngineStats, Measured
from octavo.scheduler.allocation import Reservation
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.digest import Publisher
from octavo.scheduler.errors import (
    EngineDead,
    InvalidRequest,
    NeverFits,
    QueueFull,
    RequestFailed,
)
from octavo.scheduler.events import StepEvents
from octavo.scheduler.kv_cache import KvCache
from octavo.scheduler.request import Finish, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker

NODE = "127.0.0.1"
NOBODY = f"{'0' * 40}@tcp://{NODE}:1"  # an address at which nobody listens


def stats(name="r"):
    return EngineStats(name, Capacity(9, 16), 64, 4, 1, 0, 2, 3, 7, 0.0, None, Measured())


def asking(name, n=1):
    return Request(name, [1], SamplingParams(n=n))


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 20))


class World:
    """Replies with two ingresses, a clock to be turned by hand, and a list of what was aborted."""

    def __init__(self):
        self.now = 0.0
        self.aborted = []
        self.replies = Replies("r", self.aborted.append, lambda: self.now)
        self.inboxes = [Inbox(NODE), Inbox(NODE)]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.replies.close_all()
        for inbox in self.inboxes:
            inbox.close()

    async def next(self, which):
        """The next message that is not `Taken`."""
        while isinstance(message := await self.receive(which), Taken):
            pass
        return message

    async def receive(self, which):
        return decode_message((await self.inboxes[which].receive()).body)


def test_requests_and_snapshots_cross_the_wire_unchanged():
    request = Request("id", [1, 2], SamplingParams(seed=3, stop_token_ids=(7,)), 1.5, 2, "salt")
    assert decode_request(encode(request)) == request
    moved = msgspec.structs.replace(request, resumed=[[5, 6], None, []])
    assert decode_request(encode(moved)) == moved
    assert decode_message(encode(Snapshot(stats()))) == Snapshot(stats())


def test_noise_is_refused():
    with pytest.raises(msgspec.ValidationError):
        decode_message(msgspec.msgpack.encode({"no": "message"}))


@pytest.mark.parametrize(
    "error",
    [
        NeverFits("max_tokens", "too long"),
        InvalidRequest("seed", "no"),
        QueueFull("later", retry_after=7),
        EngineDead("rank 1 died", "replica"),
        RequestFailed("bad logits"),
    ],
)
def test_errors_cross_the_wire_with_all_they_know(error):
    copy = decode_error(encode_error(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    for name in ("param", "retry_after", "replica"):
        assert getattr(copy, name, None) == getattr(error, name, None)


def test_an_unknown_error_becomes_a_failed_request():
    class Odd(EngineDead):
        pass

    assert isinstance(decode_error(encode_error(Odd("x"))), RequestFailed)


def test_a_step_is_one_message_an_ingress():
    async def test():
        async with World() as world:
            for request, inbox in (("a", 0), ("b", 1), ("c", 0)):
                world.replies.open(asking(request), world.inboxes[inbox].address)
            events = [TokenEvent(name, [index]) for index, name in enumerate("abcd")]
            world.replies.emit(StepEvents(events))
            assert await world.next(0) == Tokens(StepEvents([events[0], events[2]]))
            assert await world.next(1) == Tokens(StepEvents([events[1]]))
            world.replies.emit(StepEvents(events[:1], list("dcb"), [4, 5, 6]))
            assert await world.next(0) == Tokens(StepEvents(events[:1], ["c"], [5]))
            assert await world.next(1) == Tokens(StepEvents([], ["b"], [6]))

    run(test())


def test_tokens_of_many_requests_are_sent_by_the_step_and_not_by_the_request():
    """Eight requests of twenty tokens: twenty messages."""

    async def test():
        async with World() as world:
            workers = LocalWorkers(lambda: NullWorker(4, num_blocks=256))
            config = SchedulerConfig(max_model_len=64, block_size=4)
            scheduler = Scheduler(config, await workers.start())
            engine = Engine(scheduler, workers, world.replies.emit, clock=lambda: 0.0)
            ends = []
            for number in range(8):
                sampling = SamplingParams(max_tokens=20, seed=0, ignore_eos=True)
                request = Request(str(number), [number] * 4, sampling)
                ends.append(world.replies.open(request, world.inboxes[0].address))
                engine.add(request)
            running = asyncio.create_task(engine.run())
            await asyncio.gather(*(end.wait() for end in ends))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await workers.stop()
            world.replies.snapshot(stats())
            messages = []
            while isinstance(message := await world.next(0), Tokens):
                messages.append(message)
            assert [len(message.events) for message in messages] == [8] * 20
            assert isinstance(message, Snapshot)

    run(test())


def test_an_ingress_hears_first_who_has_taken_its_request():
    async def test():
        async with World() as world:
            world.replies.open(asking("a"), world.inboxes[0].address)
            world.replies.emit(StepEvents([TokenEvent("a", [1])]))
            assert await world.receive(0) == Taken("r", "a")
            assert await world.receive(0) == Tokens(StepEvents([TokenEvent("a", [1])]))

    run(test())


def test_a_resumed_request_has_ended_with_its_last_live_sample():
    async def test():
        async with World() as world:
            item = msgspec.structs.replace(asking("a", 3), resumed=[None, [5], None])
            ended = world.replies.open(item, world.inboxes[0].address)
            world.replies.emit(StepEvents([TokenEvent("a", [1], Finish.STOP, index=1)]))
            assert ended.is_set()

    run(test())


def test_an_ingress_hears_which_of_its_requests_begin():
    async def test():
        async with World() as world:
            for request, inbox in (("a", 0), ("b", 1), ("c", 0)):
                world.replies.open(asking(request), world.inboxes[inbox].address)
            world.replies.begin(["a", "b", "c", "gone"])
            assert await world.next(0) == Begun(["a", "c"])
            assert await world.next(1) == Begun(["b"])

    run(test())


def test_the_last_event_ends_the_wait():
    async def test():
        async with World() as world:
            ended = world.replies.open(asking("a"), world.inboxes[0].address)
            world.replies.emit(StepEvents([TokenEvent("a", [1])]))
            assert not ended.is_set()
            world.replies.emit(StepEvents([TokenEvent("a", [2], Finish.STOP)]))
            assert ended.is_set()

    run(test())


def test_the_wait_lasts_until_every_sample_has_ended_or_was_given_up():
    async def test():
        async with World() as world:
            ended = world.replies.open(asking("a", 3), world.inboxes[0].address)
            world.replies.emit(StepEvents([TokenEvent("a", [1], Finish.STOP, index=1)]))
            world.replies.emit(StepEvents([TokenEvent("a", [1], Finish.STOP, index=1)]))
            world.replies.give_up("a", 2)
            world.replies.give_up("elsewhere", 0)
            assert not ended.is_set()
            world.replies.emit(StepEvents([TokenEvent("a", [1], Finish.LENGTH, index=0)]))
            assert ended.is_set()
            ended = world.replies.open(asking("b", 2), world.inboxes[0].address)
            world.replies.emit(StepEvents([TokenEvent("b", [], Finish.ERROR, error="x")]))
            assert ended.is_set(), "a fault ends all samples"

    run(test())


def test_a_closed_request_gets_nothing_more():
    async def test():
        async with World() as world:
            world.replies.open(asking("a"), world.inboxes[0].address)
            world.replies.open(asking("b"), world.inboxes[0].address)
            world.replies.close("a")
            world.replies.emit(StepEvents([TokenEvent("a", [1]), TokenEvent("b", [2])]))
            assert await world.next(0) == Tokens(StepEvents([TokenEvent("b", [2])]))

    run(test())


def test_snapshots_go_to_every_ingress_that_attached():
    async def test():
        async with World() as world:
            for inbox in world.inboxes:
                world.replies.attach(inbox.address)
            world.replies.snapshot(stats())
            assert await world.next(0) == await world.next(1) == Snapshot(stats())

    run(test())


def test_requests_of_an_ingress_whose_lease_ran_out_are_aborted():
    """Both listen and say nothing, and one of them attaches."""

    async def test():
        async with World() as world:
            with socket.create_server((NODE, 0)) as first, socket.create_server((NODE, 0)) as last:
                ports = first.getsockname()[1], last.getsockname()[1]
                gone, here = (f"{'0' * 40}@tcp://{NODE}:{port}" for port in ports)
                ended = world.replies.open(asking("gone"), gone)
                world.replies.open(asking("here"), here)
                world.now = LEASE_SECONDS - 1
                world.replies.attach(here)
                world.replies.snapshot(stats())
                assert world.aborted == []
                world.now = LEASE_SECONDS + 1
                world.replies.snapshot(stats())
                assert world.aborted == ["gone"] and ended.is_set()

    run(test())


def test_requests_of_an_ingress_that_cannot_be_reached_are_aborted():
    async def test():
        async with World() as world:
            world.replies.open(asking("a"), NOBODY)
            while not world.aborted:
                world.replies.snapshot(stats())
                await asyncio.sleep(0.01)
            assert world.aborted == ["a"]

    run(test())


def test_a_lease_lasts_as_long_as_its_holder_is_there():
    """No `attach` reaches a replica that drains."""

    async def test():
        async with World() as world:
            world.replies.open(asking("a"), world.inboxes[0].address)
            while not isinstance(await world.receive(0), Taken):
                pass
            for _ in range(5):
                world.now += LEASE_SECONDS - 1
                world.replies.snapshot(stats())
                assert isinstance(await world.next(0), Snapshot)
            world.inboxes[0].close()
            while not world.aborted:
                world.replies.snapshot(stats())
                await asyncio.sleep(0.01)
            assert world.aborted == ["a"]

    run(test())


def test_a_lost_reader_has_its_requests_aborted_after_the_step(monkeypatch):
    monkeypatch.setattr("octavo.cluster.distributed.mailbox.QUEUED_MESSAGES", 10)

    async def test():
        async with World() as world:
            world.replies.open(asking("a"), NOBODY)
            for _ in range(1000):
                world.replies.emit(StepEvents([TokenEvent("a", [1])]))
            assert world.aborted == [], "never from within a step"
            await asyncio.sleep(0)
            assert world.aborted == ["a"]

    run(test())


def test_notices_reach_the_terminal_and_cost_nothing_without_one():
    async def test():
        board = NoticeBoard(NODE)
        notices = Notices(board.address, "replica 1")
        notices.say("too small", "fatal", "max_model_len")
        notice = await board.receive()
        assert (notice.level, notice.source, notice.text, notice.param) == (
            "fatal",
            "replica 1",
            "too small",
            "max_model_len",
        )
        notices.close()
        board.close()
        silent = Notices(None, "replica 2")
        silent.say("nobody hears")
        silent.close()

    run(test())


def test_what_the_cache_holds_is_told_whole_to_the_new_and_in_changes_to_the_others():
    async def go():
        async with World() as world:
            cache = KvCache(Capacity(9, 16), Reservation(SchedulerConfig(max_model_len=64)))
            publisher = Publisher(cache, "")
            first, second = (inbox.address for inbox in world.inboxes)

            def hold(name):
                cache.pool.publish(cache.pool.take(), name * 16)

            hold(b"a")
            world.replies.attach(first)
            world.replies.publish(publisher)
            held = await world.next(0)
            assert held.replica == "r" and held.digest.whole and held.digest.added == b"a" * 8
            hold(b"b")
            world.replies.attach(second)
            world.replies.publish(publisher)
            change, whole = (await world.next(0)).digest, (await world.next(1)).digest
            assert (change.whole, change.added) == (False, b"b" * 8)
            assert whole.whole and len(whole.added) == 16 and whole.number == change.number
            world.replies.publish(publisher)  # nothing has changed
            world.replies.attach(first, informed=False)
            world.replies.publish(publisher)
            again = (await world.next(0)).digest
            assert again.whole and again.number == change.number
            world.replies.snapshot(stats())
            assert isinstance(await world.next(1), Snapshot), "and nothing before it"

    run(go())


def test_the_backlog_is_what_waits_for_a_first_event():
    async def go():
        async with World() as world:
            address, replies = NOBODY, world.replies
            for name, work in (("a", 100), ("b", 20), ("c", 3)):
                replies.open(asking(name), address, work)
            assert replies.backlog == 123
            replies.emit(StepEvents([TokenEvent("a", [1])]))
            replies.emit(StepEvents([TokenEvent("a", [2], Finish.STOP)]))
            assert replies.backlog == 23
            replies.close("b")  # it was cancelled
            replies.close("a")
            assert replies.backlog == 3
            world.now = 2 * LEASE_SECONDS
            replies.snapshot(stats())
            assert world.aborted == ["c"] and replies.backlog == 0

    run(go())
