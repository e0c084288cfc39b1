"""Where a replica's processes go, short of a cluster to put them on."""

from __future__ import annotations

import pytest

from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.placement import bundles_of_ranks, check_room, odd_gpu
from octavo.scheduler.errors import InvalidRequest


def config(**settings):
    return EngineConfig("/m", ("m",), **settings)


@pytest.mark.parametrize(
    "nodes, expected",
    [
        ("aaa", [1, 2]),
        ("abab", [2, 1, 3]),
        ("abcbc", [1, 3, 2, 4]),
        ("bcabac", [3, 2, 4, 1, 5]),
    ],
)
def test_ranks_of_one_node_are_neighbours_and_the_first_is_beside_the_scheduler(nodes, expected):
    """The letters are the nodes of the bundles, the scheduler's first."""
    assert bundles_of_ranks(dict(enumerate(nodes))) == expected


def test_there_is_room_where_each_replica_finds_a_node():
    nodes = [{"CPU": 4.0}, {"CPU": 3.0}, {"memory": 1.0}]
    check_room(config(tensor_parallel_size=2, num_replicas=2), nodes)
    with pytest.raises(InvalidRequest) as caught:
        check_room(config(tensor_parallel_size=3, num_replicas=2), nodes)
    assert str(caught.value) == (
        "2 replica(s) of 3 rank(s) need 9 CPUs, and the cluster has 7; lower "
        "--tensor-parallel-size or --num-replicas"
    )


def test_a_replica_that_fits_no_node_may_lie_on_several():
    nodes = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 4.0}]
    wanted = {"device": "cuda", "tensor_parallel_size": 8}
    with pytest.raises(InvalidRequest) as caught:
        check_room(config(**wanted), nodes)
    assert caught.value.param == "placement_group_strategy"
    assert "need 9 CPUs and 8 GPUs on one node each, and the nodes have that 0 time(s)" in str(
        caught.value
    )
    for strategy in ("PACK", "SPREAD"):
        check_room(config(**wanted, placement_group_strategy=strategy), nodes)
    with pytest.raises(InvalidRequest, match="need 19 CPUs, and the cluster has 16"):
        check_room(config(**wanted, num_replicas=2, placement_group_strategy="PACK"), nodes)


def test_a_rank_has_a_gpu_to_itself():
    assert odd_gpu([("a", ["0"]), ("a", ["1"]), ("b", ["0"])]) is None
    assert odd_gpu([("a", ["0"]), ("b", ["1"]), ("b", ["1"])]) == (
        2,
        "was given GPU 1 by Ray, which rank 1 has already",
    )
    assert odd_gpu([("a", ["0"]), ("b", [])]) == (
        1,
        "was given no GPU by Ray, and needs one of its own",
    )
    assert odd_gpu([("a", ["0", "1"])]) == (
        0,
        "was given 2 GPUs, 0, 1, by Ray, and needs one of its own",
    )
