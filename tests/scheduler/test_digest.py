"""What a cache tells of itself: changes that add up to the whole, and never more than so much."""

from __future__ import annotations

import random

import pytest

from octavo.scheduler.allocation import Reservation
from octavo.scheduler.config import Capacity, SchedulerConfig
from octavo.scheduler.digest import Publisher, short_name, unpack_names
from octavo.scheduler.kv_cache import KvCache


def make(blocks, host_blocks=0, most=1000):
    config = SchedulerConfig(max_model_len=64, block_size=4)
    cache = KvCache(Capacity(blocks, 4, host_blocks), Reservation(config))
    return cache, Publisher(cache, "revision", most)


def fill(cache, name):
    """A device block with this content, freed and findable."""
    block = cache.pool.take()
    cache.pool.publish(block, name)
    cache.pool.release((block,))
    return block


def name(number):
    return random.Random(number).randbytes(16)


def names(*numbers):
    return {short_name(name(number)) for number in numbers}


class Reader:
    """Someone who takes digests in as they come."""

    def __init__(self):
        self.known = set()
        self.number = None

    def take(self, digest):
        if digest is None:
            return
        if digest.whole:
            self.known = set(unpack_names(digest.added))
        else:
            assert digest.number == self.number + 1
            self.known |= set(unpack_names(digest.added))
            self.known -= set(unpack_names(digest.removed))
        self.number = digest.number


def test_changes_say_what_came_and_what_went():
    cache, publisher = make(4)
    assert publisher.changes() is None
    fill(cache, name(1))
    digest = publisher.changes()
    assert (digest.number, digest.whole, digest.scope, digest.block_size, digest.stride) == (
        1, False, "revision", 4, 1,
    )  # fmt: skip
    assert set(unpack_names(digest.added)) == names(1) and not digest.removed
    assert publisher.changes() is None
    for number in (2, 3, 4):
        fill(cache, name(number))
    digest = publisher.changes()
    assert set(unpack_names(digest.added)) == names(2, 3, 4)
    assert set(unpack_names(digest.removed)) == names(1)


def test_what_came_and_went_between_two_digests_is_told_as_gone():
    cache, publisher = make(2)
    fill(cache, name(1))
    fill(cache, name(2))
    assert set(unpack_names(publisher.changes().removed)) == names(1)


def test_content_that_is_on_either_tier_is_there():
    cache, publisher = make(2, host_blocks=2)
    fill(cache, name(1))
    saved = cache.host.take()
    cache.host.name(saved, name(1))
    publisher.changes()
    fill(cache, name(2))
    digest = publisher.changes()
    assert set(unpack_names(digest.added)) == names(1, 2) and not digest.removed
    cache.host.forget(saved)
    assert set(unpack_names(publisher.changes().removed)) == names(1)


def test_a_reset_is_told():
    cache, publisher = make(4)
    fill(cache, name(1))
    publisher.changes()
    cache.reset()
    assert set(unpack_names(publisher.changes().removed)) == names(1)


@pytest.mark.parametrize("seed", range(5))
def test_changes_add_up_to_the_whole_at_any_time(seed):
    source = random.Random(seed)
    cache, publisher = make(40, host_blocks=30, most=16)
    first, late = Reader(), Reader()
    first.take(publisher.whole())
    strides = set()
    for _ in range(300):
        if source.random() < 0.01:
            cache.reset()
        elif source.random() < 0.4 and (block := cache.host.take()) is not None:
            cache.host.name(block, name(source.randrange(100)))
            cache.host.unpin(block)
            cache.host.settle()
        else:
            fill(cache, name(source.randrange(100)))
        if source.random() < 0.3:
            first.take(publisher.changes())
            digest = publisher.whole()
            strides.add(digest.stride)
            assert len(unpack_names(digest.added)) <= 3 * 16, "an even sample, more or less"
            late.take(digest)
            assert first.known == late.known
            all_names = {*cache.pool.findable, *cache.host.findable}
            told = {short for each in all_names if not (short := short_name(each)) % digest.stride}
            assert first.known == told
    assert len(strides) > 1, "it grew more sparing, and less"


def test_odd_bytes_are_no_names():
    with pytest.raises(ValueError, match="9 bytes"):
        unpack_names(b"123456789")
