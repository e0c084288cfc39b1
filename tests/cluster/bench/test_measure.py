"""Statistics by known answers, and when requests are sent."""

import itertools
import json
import math
import statistics

import numpy as np
import pytest

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.arrivals import RampUp, arrivals
from octavo.cluster.bench.load import Run
from octavo.cluster.bench.measure import in_flight, measure, per_second, spread, word
from octavo.cluster.bench.options import chosen_metrics, chosen_percentiles, objectives, pairs
from octavo.cluster.bench.report import notes, save, summary, table
from octavo.cluster.bench.scrape import CacheWatch, read_samples
from octavo.scheduler.errors import InvalidRequest

# One of 3 tokens from 100.0 to 101.0 s, one of a single token from 100.5 to 102.6 s, one failed.
LONG = Answer(100.0, 0.0, 10, 3, 0.4, 1.0, [0.2, 0.4])
SHORT = Answer(100.5, 0.3, 20, 1, 2.1, 2.1)
FAILED = Answer(100.0, 0.0, 30, 0, error="503 Service Unavailable")
ANSWERS = [LONG, SHORT, FAILED]


def run_of(answers, processor=0.4):
    return Run(list(answers), 4.0, processor, CacheWatch())


def test_totals_and_rates_are_of_what_was_answered():
    measured = measure(ANSWERS, 4.0, [50])
    assert (measured.completed, measured.failed) == (2, 1)
    assert (measured.input_tokens, measured.output_tokens) == (30, 4)
    assert measured.request_throughput == 0.5
    assert (measured.output_throughput, measured.total_throughput) == (1.0, 8.5)
    assert measured.goodput is None


def test_each_metric_by_hand():
    spreads = measure(ANSWERS, 4.0, [0, 50, 100]).spreads
    assert spreads["ttft"].mean == pytest.approx(1250)
    assert spreads["tpot"].mean == pytest.approx(300)  # (1.0 - 0.4) / 2, of the first alone
    assert spreads["itl"].mean == pytest.approx(300)
    assert spreads["itl"].std == pytest.approx(100)
    assert spreads["e2el"].median == pytest.approx(1550)
    assert spreads["normalized_latency"].mean == pytest.approx((1000 / 3 + 2100) / 2)
    assert spreads["client_queue_time"].mean == pytest.approx(150)
    assert [value for _, value in spreads["ttft"].percentiles] == pytest.approx([400, 1250, 2100])


def test_percentiles_lie_between_the_two_nearest():
    values = [each / 1000 for each in range(1, 101)]
    found = dict(spread(values, [50, 90, 99, 99.9]).percentiles)
    assert found == pytest.approx({50: 50.5, 90: 90.1, 99: 99.01, 99.9: 99.901})
    assert spread([], [99]).percentiles == ((99, 0.0),)


@pytest.mark.parametrize(
    ("bounds", "good"),
    [({"ttft": 400.001}, 1), ({"ttft": 399}, 0), ({"tpot": 300.001}, 2), ({"e2el": 2200}, 2)]
    + [({"ttft": 2200, "tpot": 299}, 1)],  # a single token has no time after the first
)
def test_goodput_counts_requests_that_meet_all(bounds, good):
    assert measure(ANSWERS, 4.0, [], bounds).goodput == good / 4


def test_peaks():
    assert per_second([LONG, SHORT]).tolist() == [2, 1, 1]  # at 0.4, 0.6, 1.0 and 2.6 s
    measured = measure(ANSWERS, 4.0, [])
    assert (measured.peak_output_throughput, measured.peak_concurrency) == (2, 2)
    one_by_one = [Answer(float(start), 0.0, 1, 1, 1.0, 1.0) for start in range(5)]
    _, counts = in_flight(one_by_one)
    assert max(counts) == 1


def test_nothing_answered():
    measured = measure([FAILED], 4.0, [99], {"ttft": 1})
    assert (measured.completed, measured.goodput, measured.peak_concurrency) == (0, 0.0, 0)
    assert measured.spreads["ttft"].mean == 0.0


def test_the_table_is_laid_out_as_vllms():
    measured = measure(ANSWERS, 4.0, [50, 99.9], {"ttft": 500})
    text = table(
        measured, run_of(ANSWERS), ["ttft", "itl"], max_concurrency=8, request_rate=math.inf
    )
    lines = text.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     2         " in lines
    assert "Maximum request concurrency:             8         " in lines
    assert "Request goodput (req/s):                 0.25      " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "P99.9 TTFT (ms):                         2098.30   " in lines
    assert "Request rate" not in text and "TPOT" not in text and "KV cache" not in text
    assert lines[-1] == "=" * 50
    rated = table(measured, run_of([]), [], max_concurrency=None, request_rate=2)
    assert "Request rate configured (RPS):           2.00      " in rated.splitlines()


def test_the_summary_has_vllms_keys():
    measured = measure(ANSWERS, 4.0, [99])
    found = summary(measured, run_of(ANSWERS), ["ttft"])
    assert found["mean_ttft_ms"] == pytest.approx(1250) and "p99_ttft_ms" in found
    assert {"request_goodput", "total_token_throughput", "max_concurrent_requests"} <= set(found)
    assert found["client_cpu_share"] == pytest.approx(0.1)
    json.dumps(found)


def test_notes_tell_of_failures_and_of_a_busy_client():
    measured = measure(ANSWERS, 4.0, [])
    assert list(notes(measured, run_of(ANSWERS))) == [
        "1 request(s) failed: 503 Service Unavailable"
    ]
    (note,) = notes(measured, run_of([LONG], processor=3.0))
    assert "75% of one core" in note


def test_results_are_appended_a_line_each(tmp_path):
    path = tmp_path / "new" / "result.json"
    for number in range(3):
        save(path, {"number": number}, append=number > 1)
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2]
    with pytest.raises(InvalidRequest, match="cannot write"):
        save(path / "below", {})


def test_all_at_once_where_the_rate_is_infinite():
    assert arrivals(3, math.inf) == [0, 0, 0]


def test_a_rate_is_met_exactly_and_repeatably():
    times = arrivals(1000, 4.0, seed=7)
    assert times == sorted(times) == arrivals(1000, 4.0, seed=7) != arrivals(1000, 4.0, seed=8)
    assert times[-1] == pytest.approx(250)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution_does(burstiness):
    times = arrivals(20_000, 10.0, burstiness=burstiness, seed=1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    varies = statistics.stdev(gaps) / statistics.mean(gaps)
    assert varies == pytest.approx(burstiness**-0.5, rel=0.05)


def test_infinite_burstiness_is_a_clock():
    assert arrivals(4, 2.0, burstiness=math.inf) == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_a_rate_that_grows():
    ramp = RampUp("linear", 1, 3)
    assert ramp.rates(3).tolist() == [1, 2, 3]
    assert RampUp("exponential", 1, 4).rates(3).tolist() == pytest.approx([1, 2, 4])
    times = arrivals(3, math.inf, burstiness=math.inf, ramp_up=ramp)
    assert np.diff([0, *times]) == pytest.approx([1, 1 / 2, 1 / 3])


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: arrivals(1, 0), "request_rate"),
        (lambda: arrivals(1, math.nan), "request_rate"),
        (lambda: arrivals(1, 1, burstiness=0), "burstiness"),
        (lambda: RampUp("linear", 0, 1), "ramp_up_start_rps"),
        (lambda: RampUp("linear", 1, math.inf), "ramp_up_end_rps"),
        (lambda: chosen_metrics("ttft,latency"), "percentile_metrics"),
        (lambda: chosen_percentiles("50,x"), "metric_percentiles"),
        (lambda: chosen_percentiles("101"), "metric_percentiles"),
        (lambda: objectives(["itl:5"]), "goodput"),
        (lambda: objectives(["ttft"]), "goodput"),
        (lambda: objectives(["ttft:-1"]), "goodput"),
        (lambda: pairs(["version"], "metadata"), "metadata"),
    ],
)
def test_mistakes_are_told_with_their_flag(make, param):
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert refused.value.param == param
    assert "\n" not in refused.value.message and "got" in refused.value.message


def test_flags_with_a_form():
    assert chosen_metrics("ttft, e2el") == ["ttft", "e2el"]
    assert chosen_metrics(None) == ["ttft", "tpot", "itl", "e2el", "normalized_latency"]
    assert chosen_percentiles("50,99.9") == [50, 99.9]
    assert [word(each) for each in (50.0, 99.9)] == ["50", "99.9"]
    assert objectives(["ttft:500", "tpot:0"]) == {"ttft": 500, "tpot": 0}
    assert pairs(["a=b=c", "d="], "metadata") == {"a": "b=c", "d": ""}


def test_metrics_pages_are_read_in_both_spellings():
    page = """# HELP vllm:kv_cache_usage_perc usage
vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a b"} 5e-1
ray_vllm_num_preemptions_total{x="1"} 3.0 1700000000
python_info{version="3"} 1.0
broken nothing
"""
    found = read_samples(page)
    assert found["vllm:kv_cache_usage_perc"] == [0.25, 0.5]
    assert found["vllm:num_preemptions_total"] == [3.0]
    assert "broken" not in found
