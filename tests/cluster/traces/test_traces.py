"""Readers of traces and lengths: known rows give known requests."""

import gzip
import itertools
import json
import statistics

import pytest

from octavo.cluster.traces.lengths import (
    PAPER_MEANS,
    drawn,
    first_turns,
    read_lengths,
    usable,
)
from octavo.cluster.traces.recorded import (
    in_order,
    read_any,
    read_azure,
    read_burstgpt,
    read_timed,
    suggested_block,
)
from octavo.cluster.traces.request import Piece, Request, alone
from octavo.scheduler.errors import InvalidRequest

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.9799600,110,0
2023-11-16 18:18:03.9799600,110,27
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}

{"timestamp": 4000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 7]}
{"timestamp": 4000, "input_length": 9, "output_length": 7}
"""
TURNS = "input_tokens,output_tokens\n74,918\n290,905\n1402,711\n41,950\n2000,3\n"


@pytest.fixture
def file(tmp_path):
    def write(content, name="data"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def sizes(requests):
    return [(each.prompt_len, each.output_len, each.arrival) for each in requests]


def refusal(requests):
    with pytest.raises(InvalidRequest) as refused:
        list(requests)
    assert refused.value.param == "dataset_path" and "\n" not in refused.value.message
    return refused.value.message


def test_azure(file):
    requests = list(read_azure(file(AZURE)))
    assert sizes(requests) == [(4808, 10, 0.0), (3180, 8, 0.052), (110, 27, 60.0)]
    assert len({each.hash_ids for each in requests}) == 3


def test_burstgpt_leaves_out_what_failed(file):
    assert sizes(read_burstgpt(file(BURST))) == [(472, 18, 0.0), (417, 276, 113.0)]


def test_hash_ids_become_pieces_that_are_shared(file):
    first, second, third = read_timed(file(MOONCAKE), 512, 0.001)
    assert first.pieces == (Piece(0, 512), Piece(1, 512), Piece(2, 6))
    assert second.hash_ids == (0, 7)
    assert sizes([first, second, third]) == [(1030, 5, 0.0), (1024, 6, 3.0), (9, 7, 3.0)]


def test_a_packed_file_is_read_like_a_plain_one(file, tmp_path):
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert list(read_timed(packed, 512, 1)) == list(read_timed(file(MOONCAKE), 512, 1))


def test_lengths_and_first_turns(file):
    path = file(TURNS)
    assert list(read_lengths(path)) == [(74, 918), (290, 905), (1402, 711), (41, 950), (2000, 3)]
    # 290 is less than 74 + 918: no prompt of a second turn is shorter than what came before it
    assert list(first_turns(read_lengths(path))) == [(74, 918), (290, 905), (41, 950)]


def test_columns_of_lengths_are_found_by_name_where_there_are_more(file):
    table = file('session,"Input tokens",ttft,Output tokens\n1,7.0,0.3,45\n1,8,0.1,0\n2,9,0.5,6\n')
    assert list(read_lengths(table)) == [(7, 45), (9, 6)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (AZURE, [(4808, 10, 0.0), (3180, 8, 0.052), (110, 27, 60.0)]),
        (BURST, [(472, 18, 0.0), (417, 276, 113.0)]),
        (MOONCAKE, [(1030, 5, 0.0), (1024, 6, 3.0), (9, 7, 3.0)]),
        (TURNS, [(74, 918, None), (290, 905, None), (1402, 711, None)]),
    ],
)
def test_a_file_shows_by_its_first_line_how_it_is_read(file, content, found):
    assert sizes(read_any(file(content)))[:3] == found


@pytest.mark.parametrize(
    ("rows", "size"),
    [([(5, 1), (20, 2), (300, 1)], 16), ([(5, 1), (300, 1)], 512), ([(5, 0)], 1), ([], 1)]
    + [([(1030, 3)], 512), ([(1024, 2)], 512), ([(1025, 3)], 512)],
)
def test_the_size_of_blocks_is_seen_in_the_file(file, rows, size):
    lines = [json.dumps({"input_length": n, "hash_ids": [*range(ids)]}) for n, ids in rows]
    assert suggested_block(file("\n".join(lines))) == size


def test_the_first_ones_of_a_file_by_time(file):
    requests = [Request((), each, arrival=at) for each, at in enumerate((3.0, 1.0, 2.0))]
    assert [each.output_len for each in in_order(requests)] == [1, 2, 0]
    assert [each.output_len for each in in_order(requests, 2)] == [1, 0]


def test_requests_of_lengths_share_nothing():
    requests = list(alone([(3, 4), (3, 4)], [0.5, 1.5]))
    assert sizes(requests) == [(3, 4, 0.5), (3, 4, 1.5)]
    assert requests[0].pieces != requests[1].pieces


@pytest.mark.parametrize(
    ("prompt", "output", "taken"),
    [(4, 4, True), (3, 4, False), (4, 3, False), (1025, 4, False), (1024, 1024, True)]
    + [(1024, 1025, False)],
)
def test_what_vllm_takes_of_sharegpt(prompt, output, taken):
    assert usable(prompt, output) is taken


def test_drawn_lengths_have_the_papers_means():
    lengths = list(itertools.islice(drawn("alpaca", 1), 4000))
    assert lengths == list(itertools.islice(drawn("alpaca", 1), 4000))
    assert lengths != list(itertools.islice(drawn("alpaca", 2), 4000))
    for column, mean in zip(zip(*lengths, strict=True), PAPER_MEANS["alpaca"], strict=True):
        assert statistics.mean(column) == pytest.approx(mean, rel=0.1)


def test_mistakes_in_files_are_told_with_their_line(file, tmp_path):
    assert "No such file" in refusal(read_azure(tmp_path / "none.csv"))
    assert "no column 'TIMESTAMP'" in refusal(read_azure(file(BURST)))
    assert "line 2: TIMESTAMP must be a date" in refusal(
        read_azure(file(AZURE.replace("2023-11-16 18:17:03", "noon")))
    )
    assert "line 3: too few fields" in refusal(
        read_azure(file("TIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-11-16,4\n"))
    )
    assert "line 2: Request tokens must be a whole number, got 'many'" in refusal(
        read_burstgpt(file(BURST.replace("472", "many")))
    )
    assert "line 1 is not JSON" in refusal(read_timed(file("timestamp"), 16, 1))
    assert "line 1 is no JSON object" in refusal(read_timed(file("[1]"), 16, 1))
    assert "has no timestamp, it has a" in refusal(read_timed(file('{"a": 1}'), 16, 1))
    message = refusal(read_timed(file(MOONCAKE.replace("[0, 1, 2]", "7")), 512, 1))
    assert "line 1: hash_ids must be a list, got 7" in message
    message = refusal(read_timed(file(MOONCAKE), 16, 1))
    assert "1030 tokens are 65 block(s) of 16, but there are 3 hash_ids" in message
    assert "--timed-trace-chunk-hash-size" in message
    assert "is not a text file" in refusal(_bytes(tmp_path, b"a,b\n\xff\xfe,1\n"))
    assert "two columns" in refusal(read_lengths(file("tokens\n4\n")))
    assert "must have two columns" in refusal(read_lengths(file("a,b,c\n4,4,4\n")))
    assert "it has no header" in refusal(read_lengths(file("")))
    assert "got '-4'" in refusal(read_lengths(file("a,b\n-4,4\n")))


def _bytes(folder, content):
    path = folder / "binary"
    path.write_bytes(content)
    return read_lengths(path)
