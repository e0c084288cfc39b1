"""Each question that `octavo simulate` answers, small, and the command around it."""

from __future__ import annotations

import json

import pytest

from octavo.cluster.cli.main import main
from octavo.cluster.simulation import fleets, questions
from octavo.cluster.simulation.workload import Job, draw_arrivals, make_jobs
from tests.cluster.simulation.setups import setup


def quiet(line):
    pass


def jobs_at(rate, count=60, **shared):
    return list(make_jobs([(50, 30)] * count, draw_arrivals(rate, count, 0), **shared))


def column(table, name):
    place = list(table.columns).index(name)
    return [row[place] for row in table.rows]


def test_what_fits_is_what_a_simulation_holds():
    table = questions.what_fits([setup(640)], [(50, 30)])
    assert column(table, "blocks") == [640] and column(table, "tokens") == [10_240]
    assert column(table, "requests of 512 tokens") == [20]
    assert column(table, "of the workload") == [640 * 16 // (50 + 15 + 8)]


def test_latency_grows_with_the_rate():
    table = questions.by_rate(setup(48), jobs_at, [1.0, 40.0, 400.0], {"ttft": 0.1}, quiet)
    first = column(table, "TTFT, ms")
    assert first == sorted(first) and first[2] > 5 * first[0]
    within = column(table, "within objectives, %")
    assert within[0] == 100 > within[2]
    assert table.notes == ["Highest rate at which nine of ten keep the objectives: 40."]


def test_the_knee_is_where_nothing_is_preempted_any_more():
    table = questions.by_pool(setup(320), jobs_at(400.0), [0.1, 0.3, 0.6, 1.0], None, quiet)
    assert column(table, "blocks") == [32, 96, 192, 320]
    preempted = column(table, "preemptions a request")
    assert preempted[0] > 0 == preempted[-1]
    (note,) = table.notes
    assert note.startswith("The knee is at 320 blocks, 100 %")


def test_block_sizes_share_the_same_memory():
    table = questions.by_block_size(setup(64), jobs_at(30.0), [4, 16, 64], None, quiet)
    assert column(table, "block size") == [4, 16, 64]
    assert len(set(column(table, "output tokens/s"))) == 3


def test_preemption_modes_cross_where_copies_become_cheaper():
    first, second = questions.preemption_costs(
        setup(40, host_bytes=1e9), jobs_at(400.0), [16, 128, 512], quiet
    )
    computing, copying = column(first, "recompute, ms"), column(first, "swap, ms")
    assert computing == sorted(computing) and copying == sorted(copying)
    assert column(second, "preemption mode") == ["auto", "recompute", "swap"]
    assert min(column(second, "preemptions a request")) > 0


def test_as_many_replicas_as_it_takes_and_not_one_more():
    tight, many = setup(48), jobs_at(300.0, 200)
    table = fleets.replicas_for(tight, many, {"ttft": 0.05}, 0.95, 16, quiet)
    good = dict(zip(column(table, "replicas"), column(table, "within objectives, %"), strict=True))
    (note,) = table.notes
    taken = int(note.split()[2])
    assert 1 < taken < 16 and good[taken] >= 95 > good[taken - 1]
    table = fleets.replicas_for(tight, many, {"ttft": 1e-6}, 0.95, 4, quiet)
    assert table.notes[0].startswith("Even 4 are too few")


def test_the_router_finds_what_serves_own_ways_miss():
    sessions = [
        Job(number, number * 0.2, 64 * (number // 11 + 1), 10, ((number % 11, 640),))
        for number in range(55)  # eleven sessions, five turns each
    ]
    table = fleets.compare_routing(setup(512), sessions, [1, 4], quiet)
    assert column(table, "routing") == ["-", "prefix", "two-choices", "round-robin"]
    best, found, by_two, in_turn = column(table, "found in the cache, %")
    assert found > 0.9 * best > by_two and found > in_turn + 10
    assert max(column(table, "imbalance: requests")) < 2


def octavo(capsys, *arguments):
    code = main(["simulate", *arguments])
    written = capsys.readouterr()
    return code, written.out, written.err


def test_the_command_prints_a_table_and_saves_it(capsys, tmp_path):
    file = tmp_path / "result.json"
    small = ["--num-prompts", "20", "--request-rate", "2", "--dataset-name", "alpaca"]
    code, out, _ = octavo(
        capsys, "run", "opt-13b", "--hardware", "a100-40", *small, "--save-result", str(file)
    )
    assert code == 0 and "| TTFT, ms" in out and "20 requests (alpaca" in out
    saved = json.loads(file.read_text())
    rows = {row["figure"]: row["mean"] for row in saved["tables"][0]["rows"]}
    assert rows["requests answered"] == 20 and rows["TTFT, ms"] > 0
    assert saved["arguments"]["model"] == "opt-13b"
    again = octavo(capsys, "run", "opt-13b", "--hardware", "a100-40", *small)[1]
    assert again == out


def test_a_trace_is_replayed_at_its_own_times_or_at_a_rate(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("Timestamp,Request tokens,Response tokens\n0,50,20\n100,60,10\n")
    given = ["run", "opt-13b", "--hardware", "a100-40", "--dataset-path", str(trace)]
    told = octavo(capsys, *given)[1].splitlines()
    faster = octavo(capsys, *given, "--request-rate", "inf")[1].splitlines()
    rates = [
        float(line.split("|")[2])
        for lines in (told, faster)
        for line in lines
        if "requests/s" in line
    ]
    assert rates[0] == pytest.approx(2 / 100, rel=0.05) and rates[1] > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "gpt-9"], "'gpt-9' is neither a directory"),
        (["run", "--hardware", "h300"], "--hardware 'h300' is neither"),
        (["run", "opt-175b"], "raise --tensor-parallel-size"),
        (["run", "-tp", "3"], "--tensor-parallel-size 3 does not divide"),
        (["run", "--goodput", "itl:3"], "--goodput takes milliseconds for ttft"),
        (["run", "--request-rate", "1", "2"], "--request-rate takes one number"),
        (["run", "--num-replicas", "1", "2"], "--num-replicas takes one number"),
        (["run", "--hardware", "h100", "h200"], "--hardware takes one name"),
        (["run", "--grain", "3"], "--grain must divide the block size 16"),
        (["run", "--block-size", "12"], "--block-size must be a power of two"),
        (["run", "--dataset-path", "nothing.csv"], "--dataset-path nothing.csv cannot be read"),
        (["run", "--gpu-memory-utilization", "2"], "--gpu-memory-utilization must be above 0"),
        (["run", "--swap-space", "-1"], "--swap-space must be a number of GiB"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, arguments, said):
    code, out, err = octavo(capsys, *arguments)
    assert code == 2 and out == ""
    assert said in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["guess"], ["run", "--request-rate", "0"], []])
def test_what_the_parser_refuses(capsys, arguments):
    with pytest.raises(SystemExit) as raised:
        main(["simulate", *arguments])
    assert raised.value.code == 2
