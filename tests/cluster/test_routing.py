"""Which replica a request is sent to, from reports and digests alone."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from octavo.cluster.routing.names import names_of
from octavo.cluster.routing.routing import PATIENCE, Decision, Reason, Routing
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.digest import Digest, Publisher
from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Request
from octavo.scheduler.sampling import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.workers.null import NullWorker

BLOCK = 10


def pack(names):
    return struct.pack(f"<{len(names)}Q", *names)


def whole(names, number=0, scope=""):
    return Digest(number, True, scope, BLOCK, 1, pack(names))


class World:
    """A router and replicas called a, b, c, of which each has told what it holds."""

    def __init__(self, **holds):
        self.routing = Routing()
        self.able = list(holds)
        self.sent = 0
        for name, names in holds.items():
            self.routing.learn(name, whole(names))
            self.routing.hear(name, 0, 0, 0.0)

    def ask(self, names, able=None, tokens=None):
        """A request of whole blocks and one token more."""
        self.sent += 1
        return self.routing.route(
            str(self.sent),
            tokens or len(names) * BLOCK + 1,
            lambda scope, size: names,
            self.able if able is None else able,
        )


def test_a_request_goes_where_most_of_its_prefix_is():
    world = World(a=[1], b=[1, 2, 3], c=[])
    assert world.ask([1, 2, 3, 4]) == Decision("b", 3 * BLOCK, Reason.PREFIX)


def test_the_last_token_is_always_computed():
    assert World(a=[1, 2]).ask([1, 2], tokens=2 * BLOCK).cached == BLOCK


def test_a_session_sticks_though_nothing_was_told_yet():
    world = World(a=[], b=[], c=[])
    first = world.ask([1, 2])
    assert first.reason is Reason.NEW and first.cached == 0
    for turn in range(3, 9):
        after = world.ask(list(range(1, turn + 1)))
        assert after == Decision(first.replica, (turn - 1) * BLOCK, Reason.PREFIX)


def test_new_prefixes_spread():
    world = World(a=[], b=[], c=[])
    where = Counter(world.ask([100 + i, 200 + i]).replica for i in range(30))
    assert set(where.values()) == {10}


def test_a_queue_that_costs_more_than_the_prefix_is_worth_sends_it_elsewhere():
    world = World(a=[1, 2, 3], b=[])
    worth = int(PATIENCE) * 3 * BLOCK
    world.routing.hear("a", worth - 1, 0, 0.0)
    assert world.ask([1, 2, 3, 4]).replica == "a"
    world = World(a=[1, 2, 3], b=[])
    world.routing.hear("a", worth + 1, 0, 0.0)
    assert world.ask([1, 2, 3, 4]) == Decision("b", 0, Reason.QUEUE)


def test_a_prefix_that_many_have_in_common_comes_to_be_everywhere():
    world = World(a=[1], b=[], c=[])
    asked = [world.ask([1, 100 + i]).replica for i in range(60)]
    assert set(Counter(asked)) == set("abc")
    late = Counter(asked[30:])
    assert max(late.values()) <= 1.25 * 10


def test_what_was_sent_since_the_last_report_counts_and_what_was_reported_counts_once():
    world = World(a=[], b=[])
    first = world.ask([1] * 10).replica
    other = "b" if first == "a" else "a"
    assert world.ask([2]).replica == other, "the first has 100 tokens to do"
    world.routing.taken("1", first)
    world.routing.hear(first, 40, 0, 1e4)  # it is in there
    world.routing.taken("2", other)
    world.routing.hear(other, 41, 0, 1e4)
    assert world.ask([3]).replica == first


def test_a_request_that_serve_gave_to_another_counts_there():
    world = World(a=[], b=[])
    first = world.ask([1, 2]).replica
    other = "b" if first == "a" else "a"
    world.routing.taken("1", other)
    assert world.ask([1, 2, 3]) == Decision(other, 2 * BLOCK, Reason.PREFIX)
    assert world.ask([9]).replica == first


def test_what_has_ended_counts_no_more():
    world = World(a=[], b=[])
    first = world.ask([1] * 50).replica
    world.routing.ended("1")
    other = "b" if first == "a" else "a"
    assert world.ask([2]).replica in "ab"
    world.routing.hear(first, 0, 0, 1e4)
    assert world.ask([1, 1], able=[first]).cached == 0, "its promise is taken back"
    world.routing.ended("1")  # twice is no harm
    assert world.ask([3], able=[other]).replica == other


def test_replicas_that_are_not_able_and_suspects_get_nothing():
    world = World(a=[1, 2], b=[], c=[])
    assert world.ask([1, 2], able=["b", "c"]).replica in "bc"
    world.routing.suspect("a")
    assert world.ask([1, 2], able=["a", "b"]).replica == "b"
    assert world.ask([1, 2], able=["a"]).replica == "a", "better than nobody"
    world.routing.hear("a", 0, 0, 0.0)
    assert world.ask([1, 2], able=["a", "b"]).replica == "a"


@pytest.mark.parametrize("shape", ["all alike in length", "shorter than a block", "mixed"])
def test_case_42_prompts_of_one_list_are_spread_over_four(shape):
    world = World(a=[], b=[], c=[], d=[])
    longest = {"all alike in length": 2, "shorter than a block": 0, "mixed": 3}[shape]
    went = Counter()
    for number in range(16):
        blocks = number % (longest + 1) if shape == "mixed" else longest
        went[world.ask([100 * number + block for block in range(blocks)]).replica] += 1
    assert len(went) == 4 and min(went.values()) >= (2 if shape == "mixed" else 4)


def test_case_43_a_replica_that_is_new_gets_what_is_new():
    world = World(a=[1, 2], b=[1, 2])
    world.routing.hear("a", 500, 4, 0.0)
    world.routing.hear("b", 500, 4, 0.0)
    world.routing.hear("c", 0, 0, 0.0)  # it has told no digest yet
    world.able.append("c")
    assert world.ask([7]).replica == "c"
    assert world.routing.unknown() == ["c"]


def test_without_digests_it_is_load_alone():
    routing = Routing()
    routing.hear("a", 100, 1, 0.0)
    routing.hear("b", 50, 1, 0.0)
    decision = routing.route("1", 20, lambda *_: [1, 2], ["a", "b"])
    assert decision == Decision("b", 0, Reason.LOAD)
    assert routing.unknown() == ["a", "b"]


def test_of_a_request_that_cannot_use_the_cache_it_is_load_alone():
    world = World(a=[1, 2], b=[])
    world.routing.hear("a", 10, 0, 0.0)
    assert world.routing.route("1", 21, None, "ab") == Decision("b", 0, Reason.LOAD)


def test_where_nothing_is_known_serve_chooses():
    assert Routing().route("1", 5, lambda *_: [], ["a"]) == Decision("", 0, Reason.NONE)
    assert World(a=[1]).ask([1], able=[]).reason is Reason.NONE


def test_a_digest_that_was_missed_makes_what_a_replica_holds_unknown():
    world = World(a=[1], b=[])
    world.routing.learn("a", Digest(1, False, "", BLOCK, 1, pack([2])))
    assert world.ask([1, 2, 3]).cached == 2 * BLOCK
    world.routing.learn("a", Digest(3, False, "", BLOCK, 1, pack([4])))
    assert world.routing.unknown() == ["a"] and world.ask([1, 2]).cached == 0
    world.routing.learn("a", Digest(4, False, "", BLOCK, 1, pack([5])))
    assert world.routing.unknown() == ["a"]
    world.routing.learn("a", whole([1, 2], number=4))
    assert world.routing.unknown() == [] and world.ask([1, 2, 3]).cached == 2 * BLOCK
    world.routing.learn("a", Digest(5, False, "", BLOCK, 1, b"odd"))
    assert world.routing.unknown() == ["a"]


def test_one_that_is_gone_leaves_nothing_behind():
    world = World(a=[1, 2], b=[])
    assert world.ask([1, 2, 3]).replica == "a"
    world.routing.forget("a")
    assert world.ask([1, 2, 3], able=["b"]) == Decision("b", 0, Reason.NEW)
    world.routing.taken("1", "a")  # it was still on its way
    world.routing.ended("1")
    assert world.ask([9]).replica == "b" and world.routing.unknown() == []


def test_models_of_two_versions_are_asked_each_by_its_own_names():
    world = World(a=[1, 2], b=[])
    world.routing.learn("b", whole([11, 12], scope="new"))
    chains = {"": [1, 2], "new": [11, 12]}
    decision = world.routing.route("1", 21, lambda scope, size: chains[scope], ["b"])
    assert decision == Decision("b", 20, Reason.PREFIX)
    both = world.routing.route("2", 21, lambda scope, size: chains[scope], ["a", "b"])
    assert both.cached == 20


@pytest.mark.parametrize(
    ("salt", "adapter", "found"), [("s", "x", 32), ("t", "x", 0), ("s", "y", 0), ("", "x", 0)]
)
def test_names_are_those_of_the_cache_scope_and_adapter_included(salt, adapter, found):
    config = SchedulerConfig(max_model_len=256, block_size=16, revision="r1", adapters=("x",))
    scheduler = Scheduler(config, Capacity(32, 16))
    publisher = Publisher(scheduler.cache, config.revision)
    worker = NullWorker(16, vocab_size=100, num_blocks=32)
    worker.allocate(worker.measure())
    prompt = list(range(40))
    sampling = SamplingParams(max_tokens=2, seed=0)
    scheduler.add(Request("1", prompt, sampling, salt="s", adapter="x"), 0.0)
    while (plan := scheduler.schedule(0.0)) is not None:
        scheduler.update(decode_result(worker.execute(encode(plan))), 0.0)
    routing = Routing()
    routing.learn("a", publisher.whole())
    request = Request("2", [*prompt, 7], sampling, salt=salt, adapter=adapter)
    assert routing.route("2", 41, names_of(request), ["a"]).cached == found


def test_a_request_whose_prompt_is_scored_finds_nothing():
    sampling = SamplingParams(max_tokens=1, seed=0, prompt_logprobs=0)
    assert names_of(Request("1", [1], sampling)) is None
