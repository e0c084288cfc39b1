"""Made-up requests."""

import pytest

from octavo.cluster.bench.datasets.synthetic import prefix_repetition, random_requests
from octavo.cluster.traces.request import Piece
from octavo.scheduler.errors import InvalidRequest


def test_random_lengths_lie_around_the_given_ones():
    requests = list(
        random_requests(200, 100, 10, input_ratio=0.3, output_ratio=0.5, prefix_len=16, seed=3)
    )
    assert {each.pieces[0] for each in requests} == {Piece("prefix", 16)}
    assert len({each.pieces[1].name for each in requests}) == 200
    prompts = {each.prompt_len - 16 for each in requests}
    assert min(prompts) >= 70 and max(prompts) <= 130 and len(prompts) > 30
    assert {each.output_len for each in requests} == set(range(5, 16))
    assert {each.prompt_len for each in random_requests(5, 100, 10)} == {100}


def test_prefixes_are_repeated():
    requests = list(
        prefix_repetition(11, prefix_len=32, suffix_len=8, num_prefixes=3, output_len=2)
    )
    assert [each.hash_ids[0] for each in requests] == [
        f"prefix {number}" for number in (0, 0, 0, 1, 1, 1, 2, 2, 2)
    ]
    assert len({each.hash_ids[1] for each in requests}) == 9
    assert {each.prompt_len for each in requests} == {40}


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: random_requests(1, 0, 1), "random_input_len"),
        (lambda: random_requests(1, 1, 0), "random_output_len"),
        (lambda: random_requests(1, 1, 1, output_ratio=1.0), "random_range_ratio"),
        (lambda: random_requests(1, 1, 1, prefix_len=-1), "random_prefix_len"),
        (lambda: prefix_repetition(5, num_prefixes=6), "num_prompts"),
        (lambda: prefix_repetition(5, num_prefixes=0), "prefix_repetition_num_prefixes"),
    ],
)
def test_sizes_that_make_no_request_are_refused(make, param):
    with pytest.raises(InvalidRequest) as refused:
        list(make())
    assert refused.value.param == param
