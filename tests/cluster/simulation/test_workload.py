"""Requests to come: drawn, or read from the formats that traces are published in."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import statistics

import pytest

from octavo.cluster.bench.prompts import Prompts
from octavo.cluster.simulation.traces import read_trace
from octavo.cluster.simulation.workload import OWN, Job, draw_arrivals, draw_lengths, make_jobs
from octavo.cluster.traces.recorded import read_any
from octavo.scheduler.errors import InvalidRequest


def write(path, text):
    path.write_text(text)
    return path


def test_times_count_from_the_first_request_and_lengths_have_none(tmp_path):
    text = "Timestamp,Request tokens,Response tokens\n45,9,0\n118,417,276\n120,472,18\n119,5,6\n"
    trace = read_trace(write(tmp_path / "burst.csv", text))
    assert trace.timed and trace.lengths == [(417, 276), (5, 6), (472, 18)]
    assert [(job.number, job.at, job.pieces) for job in trace.jobs] == [
        *((0, 0.0, ()), (1, 1.0, ()), (2, 2.0, ()))
    ]
    trace = read_trace(write(tmp_path / "l.csv", "input_tokens,output_tokens\n7,45\n8,69\n"))
    assert not trace.timed and [job.at for job in trace.jobs] == [0, 0]
    assert read_trace(tmp_path / "l.csv", 1).lengths == [(7, 45)]


def test_equal_hash_ids_are_equal_tokens(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [7, "x"]},
        {"timestamp": 500, "input_length": 30, "output_length": 5, "hash_ids": [7, 2**70]},
    ]
    path = tmp_path / "mooncake.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    first, second = read_trace(path).jobs
    one, two = first.tokens(), second.tokens()
    assert (len(one), len(two), second.at) == (20, 30, 0.5)
    assert one[:16] == two[:16] and one[16] != two[16]
    assert max(one + two) < 2**32


def test_a_simulated_prompt_shares_with_others_what_it_shares_where_it_is_sent(tmp_path):
    rows = [[1, 2, 3], [1, 2, 9], [4, 2, 3], [1], [5, 1], [1, 2, 3, 6]]
    lines = [
        json.dumps(
            {"timestamp": 0, "input_length": 16 * len(ids) - 3, "output_length": 5, "hash_ids": ids}
        )
        for ids in rows
    ]
    path = write(tmp_path / "trace.jsonl", "\n".join(lines))
    simulated = [job.tokens() for job in read_trace(path).jobs]
    sent = [Prompts(range(1000), 0).tokens(each) for each in read_any(path)]
    assert [len(each) for each in simulated] == [len(each) for each in sent]

    def shared(prompts):
        return [len(os.path.commonprefix([*pair])) for pair in itertools.combinations(prompts, 2)]

    assert shared(simulated) == shared(sent)
    assert 45 in shared(sent) and 32 in shared(sent) and 0 in shared(sent)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"input_length": 5}\n', "line 1"),
        ("a.csv", "input,output\n5,x\n", "line 2"),
        ("a.csv", "input,output\n5,0\n", "no request"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path, name, text, said):
    with pytest.raises(InvalidRequest, match=said):
        read_trace(write(tmp_path / name, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidRequest, match="No such file"):
        read_trace(tmp_path / "nothing.csv")


def test_drawn_lengths_have_the_means_asked_for_and_keep_the_bound():
    lengths = draw_lengths((161.31, 337.99), 2000, 0, 2048)
    for side, mean in enumerate((161.31, 337.99)):
        assert statistics.mean(each[side] for each in lengths) == pytest.approx(mean, rel=0.03)
    assert max(map(sum, lengths)) <= 2048
    assert set(draw_lengths((100, 20), 50, 0, 2048, spread=1.0)) == {(100, 20)}
    with pytest.raises(InvalidRequest, match="max-model-len"):
        draw_lengths((3000, 20), 50, 0, 2048)


def test_arrivals_keep_the_rate_and_come_in_bursts_where_asked():
    even, poisson, bursts = (draw_arrivals(4.0, 4000, 0, each) for each in (50.0, 1.0, 0.1))
    for arrivals in (even, poisson, bursts):
        assert arrivals[-1] == pytest.approx(1000, rel=0.15)
    variations = []
    for arrivals in (even, poisson, bursts):
        gaps = [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]
        variations.append(statistics.pstdev(gaps) / statistics.mean(gaps))
    assert variations == [
        pytest.approx(50**-0.5, rel=0.1),
        pytest.approx(1, rel=0.1),
        pytest.approx(10**0.5, rel=0.2),
    ]


def test_prefixes_are_shared_within_a_group_and_prompts_are_not():
    tokens = [job.tokens() for job in make_jobs([(5, 1)] * 40, range(40), 16, 2)]
    assert len({tuple(each[:16]) for each in tokens}) == 2
    assert len({each[16] for each in tokens}) == 40
    assert all(len(each) == 21 for each in tokens)


def test_grains_keep_lengths_on_average_and_what_is_shared():
    jobs = [Job(number, 0.0, 40, 21, ((1, 32),)) for number in range(1000)]
    requests = [job.request(16, {}) for job in jobs]
    answers = [each.sampling.max_tokens for each in requests]
    assert set(answers) == {1, 2} and statistics.mean(answers) == pytest.approx(21 / 16, rel=0.02)
    assert requests[3].prompt == [1, 1] and Job(0, 0.0, 90, 1).tokens(16) == [OWN] * 6
