"""Two replicas, and requests that go where their prefix is.

What is counted begins with the server, so that this module must be the first to use it.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.answers import MODEL, Asking, assert_same
from tests.e2e.server import (
    BACK_SECONDS,
    healthy,
    read_gauge,
    replaced,
    scrape,
    wait_for,
)

BLOCK = 16
MORE = 20  # tokens that each turn adds
REPORT_SECONDS = 20


@pytest.fixture(autouse=True)
def calm(server):
    """Each test begins with two idle replicas."""
    wait_for(lambda: healthy(server), BACK_SECONDS, "two idle replicas")


def some(source, count):
    return [source.randrange(3, 200) for _ in range(count)]


def complete(client, prompt, salt=None):
    """How many of a prompt's tokens were found in the cache."""
    answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=8, extra_body={"cache_salt": salt}
    )
    return answer.usage.prompt_tokens_details.cached_tokens


def routed(server):
    """Requests by replica and the router's reason."""
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    pattern = r'^octavo:requests_routed_total{engine="([^"]+)".*reason="([^"]+)"} (\S+)$'
    return {(name, why): float(count) for name, why, count in re.findall(pattern, text, re.M)}


def by_replica(server):
    totals = Counter()
    for (name, _), count in routed(server).items():
        totals[name] += count
    return totals


def gained(server, before, requests):
    """What each replica was sent since, once all these requests are reported."""
    wait_for(lambda: (by_replica(server) - before).total() == requests, REPORT_SECONDS, "a report")
    return by_replica(server) - before


def hits_come_as_expected(server):
    text = scrape(server.url)
    expected = sum(read_gauge(text, "octavo:prefix_hits_expected_total").values())
    return expected == sum(read_gauge(text, "vllm:prefix_cache_hits_total").values()) > 0


def side_by_side(call, items):
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))


@pytest.fixture
def one_by_one(server):
    """Calls whose turn no report changes: before each, both replicas were heard to be idle."""

    def call_all(call, items):
        found = []
        for each in items:
            wait_for(lambda: healthy(server), BACK_SECONDS, "two idle replicas")
            found.append(call(each))
        return found

    return call_all


def test_sessions_stay_where_they_are_and_new_ones_spread(server, client, one_by_one):
    source = random.Random(1)
    sessions = [some(source, 3 * BLOCK + 5) for _ in range(8)]
    before = by_replica(server)
    for turn in range(4):
        ask = side_by_side if turn else one_by_one
        found = ask(lambda each: complete(client, each), sessions)
        lengths = [len(session) - MORE if turn else 0 for session in sessions]
        assert found == [length // BLOCK * BLOCK for length in lengths]
        for session in sessions:
            session += some(source, MORE)
    sent = gained(server, before, 32)
    assert set(sent.values()) == {16}, "half of the sessions each, with all of their turns"
    reasons = Counter()
    for (_, reason), count in routed(server).items():
        reasons[reason] += count
    assert +reasons == {"new": 8, "prefix": 24}
    wait_for(lambda: hits_come_as_expected(server), REPORT_SECONDS, "the hits that were expected")


def test_case_42_prompts_of_one_call_are_spread(server, client):
    source = random.Random(2)
    before = by_replica(server)
    prompts = [some(source, 2 * BLOCK) for _ in range(16)]
    client.completions.create(model=MODEL, prompt=prompts, max_tokens=4)
    assert min(gained(server, before, 16).values()) >= 6


def test_sessions_of_a_dead_replica_move_and_a_later_one_gets_its_share(server, client):
    """Case 43, too."""
    source = random.Random(3)
    sessions = [some(source, 3 * BLOCK) for _ in range(6)]
    calls = {str(n): {"prompt": each, "temperature": 0} for n, each in enumerate(sessions)}
    undisturbed = dict(Asking(client, "undisturbed", calls).answers(60))
    wait_for(lambda: healthy(server), REPORT_SECONDS, "two idle replicas")
    names, before = server.idle(), by_replica(server)
    victim = server.actors("SchedulerActor")[0]  # found beforehand: that takes time
    asking = Asking(client, "moved", calls)
    os.kill(victim.pid, signal.SIGKILL)
    for name, answer in asking.answers(60):
        assert_same(answer, undisturbed[name], name)
    found = [
        complete(client, [*each, *some(source, MORE)], salt=f"moved 0 {n}")
        for n, each in enumerate(sessions)
    ]
    wait_for(lambda: replaced(server, names), BACK_SECONDS, "a new replica")
    [late] = server.idle() - names
    [left] = server.idle() & names
    # Three began there and the others came, but for those that ended before their replica did.
    there = by_replica(server)[left] - before[left] - len(found)
    assert found.count(3 * BLOCK) == there >= 3 and found.count(0) == 6 - there
    before = by_replica(server)
    side_by_side(lambda each: complete(client, each), [some(source, BLOCK) for _ in range(12)])
    assert gained(server, before, 12)[late] >= 4
