"""Many replicas and many requests: what makes them cheap changes no result."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from octavo.cluster.simulation import progress, workload
from octavo.cluster.simulation.fleet import RoutingPolicy
from octavo.cluster.simulation.naming import MOST_KEPT, Naming
from octavo.cluster.simulation.progress import Told
from octavo.cluster.simulation.setup import simulate
from octavo.cluster.simulation.workload import Arrivals, Job, Jobs, Lengths, draw_lengths
from octavo.scheduler.hashing import extend_chain, root_hash
from tests.cluster.simulation.setups import setup

ROOT = root_hash("", "", "")


def many(count=400, rate=150.0, prefix=75):
    lengths = Lengths((40.0, 30.0), count, 0, 400)
    return Jobs(lengths, Arrivals(rate, count, 0), prefix, 12)


def hashed(runs, size):
    chain, tokens = [], [content for content, count in runs for _ in range(count)]
    extend_chain(chain, ROOT, tokens, size)
    return chain


@pytest.mark.parametrize("size", [1, 4, 16])
def test_names_are_equal_where_hashes_are_and_nowhere_else(size, monkeypatch):
    monkeypatch.setattr("octavo.cluster.simulation.naming.MOST_KEPT", 3)
    source, naming, hash_of, name_of = random.Random(size), Naming(ROOT, size), {}, {}
    for number in range(300):
        pieces = [(source.randrange(3), source.randrange(1, 40)) for _ in range(4)]
        job = Job(number % 150, 0.0, source.randrange(1, 120), 5, tuple(pieces))
        runs = job.runs(source.choice((1, 2)))
        names, hashes = naming.name(runs), hashed(runs, size)
        assert len(names) == len(hashes)
        for name, each in zip(names, hashes, strict=True):
            assert hash_of.setdefault(name, each) == each
            assert name_of.setdefault(each, name) == name
    assert len(hash_of) > 300 and len(naming._kept) <= 3 < MOST_KEPT


@pytest.mark.parametrize("policy", get_args(RoutingPolicy))
@pytest.mark.parametrize("scheduler", [{}, {"enable_prefix_caching": False}])
def test_results_are_those_of_hashing_every_token(policy, scheduler, monkeypatch):
    fleet = setup(48, scheduler, replicas=7, routing=policy)
    quick = simulate(fleet, many())
    assert quick.requests == 400
    assert (quick.prefix_hit_rate > 0.1) == (not scheduler)
    monkeypatch.setattr(Naming, "name", lambda self, runs: None)
    assert simulate(fleet, list(many())) == quick


def test_what_is_drawn_while_it_is_gone_through_is_the_same_each_time(monkeypatch):
    jobs = many()
    assert list(jobs) == list(jobs) and len(jobs) == len(list(jobs)) == 400
    assert draw_lengths((40.0, 30.0), 400, 0, 400) == list(jobs.lengths)
    monkeypatch.setattr(workload, "SAMPLE", 1000)
    prompts, answers = zip(*Lengths((161.31, 337.99), 20_000, 0, 2048), strict=True)
    assert sum(prompts) / 20_000 == pytest.approx(161.31, rel=0.05)
    assert sum(answers) / 20_000 == pytest.approx(337.99, rel=0.05)


def test_a_long_run_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LOOK", 100)
    said = []
    jobs = Told(many(), said.append)
    assert simulate(setup(48, replicas=2), jobs).requests == len(jobs) == 400
    expected = [f"{count} of 400 requests" for count in (100, 200, 300)]
    assert [line.split(",")[0] for line in said] == expected
    assert all(line.endswith("minutes left") for line in said)
