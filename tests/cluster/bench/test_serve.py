"""`octavo bench serve` from the command line, against the whole server over a tiny model."""

import json
import socket
import sys

import pytest

from octavo.cluster.bench.names import DATASETS
from octavo.cluster.bench.workload import READERS
from octavo.cluster.cli import main as cli
from tests.cluster.serving import serve_engine, settings_for, tiny_engine

MOONCAKE = [
    {"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [5, 6, 7]},
    {"timestamp": 100, "input_length": 48, "output_length": 4, "hash_ids": [5, 6, 8]},
    {"timestamp": 200, "input_length": 33, "output_length": 5, "hash_ids": [5, 6, 9]},
]


@pytest.fixture(scope="module")
def url(tiny_model):
    path = tiny_model()
    with serve_engine(tiny_engine(path), settings_for(path)) as url:
        yield url


@pytest.fixture
def bench(url, capsys, tmp_path):
    """Runs it, quietly; the exit code, the figures and what was printed."""

    def run(*flags, code=0):
        saving = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path)]
        saving += ["--result-filename", "r.json", "--disable-tqdm"]
        ended = cli.main(["bench", "serve", "--base-url", url, "--ignore-eos", *saving, *flags])
        said = capsys.readouterr()
        assert ended == code, said.err
        saved = tmp_path / "r.json"
        result = json.loads(saved.read_text()) if saved.exists() else {}
        assert code or not any(result["errors"]), result["errors"]
        return result, said.out + said.err

    return run


RANDOM = ["--input-len", "20", "--output-len", "6", "--num-prompts", "8"]


def test_random_prompts(bench):
    result, said = bench(*RANDOM, "--max-concurrency", "3", "--goodput", "e2el:60000")
    assert (result["completed"], result["failed"]) == (8, 0)
    assert result["total_input_tokens"] == 160 and result["total_output_tokens"] == 48
    assert result["input_lens"] == [20] * 8 and result["output_lens"] == [6] * 8
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["max_concurrent_requests"] <= 3
    for gaps, ttft, whole in zip(result["itls"], result["ttfts"], result["latencies"], strict=True):
        assert ttft > 0 and ttft + sum(gaps) == pytest.approx(whole)
        assert whole < result["duration"]
    assert 0 < result["mean_ttft_ms"] < result["mean_e2el_ms"]
    assert result["peak_kv_cache_usage"] >= 0 and result["num_preemptions"] == 0
    assert "Successful requests:                     8" in said
    assert "Maximum request concurrency: 3" in said


def test_the_seed_decides_the_prompts(bench):
    greedy = [*RANDOM, "--temperature", "0"]
    texts = [bench(*greedy, "--seed", seed)[0]["generated_texts"] for seed in "112"]
    assert texts[0] == texts[1] != texts[2]


def test_requests_are_sent_at_their_rate(bench):
    result, _ = bench(*RANDOM, "--request-rate", "20", "--burstiness", "inf")
    starts = sorted(result["start_times"])
    assert 0.1 < starts[-1] - starts[0] < 5  # 0.35 where nothing keeps them
    assert result["request_rate"] == 20


def test_hash_ids_are_shared_prefixes(bench, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(each) for each in MOONCAKE))
    result, said = bench(
        *("--dataset-name", "mooncake", "--dataset-path", str(trace), "--seed", "5"),
        *("--timed-trace-chunk-hash-size", "16", "--trace-speed", "0.5"),
    )
    assert result["input_lens"] == [40, 48, 33] and result["output_lens"] == [3, 4, 5]
    starts = result["start_times"]
    assert 0.1 < starts[2] - starts[0] < 5  # 0.4 where nothing keeps them
    # the second and the third have 32 tokens of the first
    assert result["prefix_cache_hit_rate"] == pytest.approx(64 / 121)
    assert "gives 3 of 1000 prompts" in said and "times of the trace" in said


def test_prefixes_that_repeat_are_found(bench):
    lengths = ("prefix-len", "64", "suffix-len", "5", "num-prefixes", "2", "output-len", "2")
    flags = [
        f"--prefix-repetition-{each}" if number % 2 == 0 else each
        for number, each in enumerate(lengths)
    ]
    result, _ = bench(
        *("--dataset-name", "prefix_repetition", *flags, "--num-prompts", "8", "--seed", "9"),
        *("--max-concurrency", "1"),
    )
    assert result["prefix_cache_hit_rate"] == pytest.approx(6 * 64 / (8 * 69))


def test_chats_of_texts(bench, tmp_path):
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "Hi", "output_tokens": 4}\n{"prompt": "Ho", "output_tokens": 4}')
    result, _ = bench(
        *("--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path", str(asked)),
        *("--custom-output-len", "-1", "--num-prompts", "2"),
    )
    assert result["completed"] == 2 and result["output_lens"] == [4, 4]


def test_requests_that_are_refused_are_counted_and_told(bench):
    result, said = bench("--input-len", "600", "--output-len", "5", "--num-prompts", "2", code=1)
    assert (result["completed"], result["failed"]) == (0, 2)
    assert "2 request(s) are longer than the 512 tokens that are served" in said
    assert "2 request(s) failed: 400 Bad Request" in said


def test_a_picture_has_no_text_in_its_metadata(bench, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    bench(*RANDOM, "--plot", str(picture))
    raw = picture.read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert not {b"tEXt", b"iTXt", b"zTXt"} & {raw[at : at + 4] for at in range(len(raw))}


def test_without_matplotlib_a_sentence_says_what_to_install(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    _, said = bench(*RANDOM, "--plot", "run.png", code=2)
    assert "--plot needs matplotlib: pip install 'octavo[bench]'" in said


MISTAKES = [
    (["--plot", "run.jpg"], "--plot must be the name of a .png file, got 'run.jpg'"),
    (["--dataset-name", "azure"], "dataset azure needs a file: give --dataset-path"),
    (["--num-prompts", "0"], "--num-prompts must be at least 1, got 0"),
    (["--max-concurrency", "0"], "--max-concurrency must be at least 1, got 0"),
    (["--output-len", "0"], "--output-len must be at least 1, got 0"),
    (["--request-rate", "0"], "--request-rate must be above 0, got 0"),
    (["--self-timed"], "--self-timed needs a dataset with times"),
    (["--ramp-up-strategy", "linear"], "needs --ramp-up-start-rps and --ramp-up-end-rps"),
    (["--random-range-ratio", "x"], "--random-range-ratio must be a number, or JSON"),
    (["--base-url", "localhost:8000"], "--base-url must begin with http:// or https://"),
    (["--endpoint", "v1"], "--endpoint must begin with /, got 'v1'"),
    (["--tokenizer", "./nowhere"], "there is no directory ./nowhere"),
    (["--prompt-format", "text", "--skip-tokenizer-init"], "--tokenizer"),
    (["--backend", "openai-chat", "--skip-tokenizer-init"], "--tokenizer"),
    (["--result-dir", __file__], "cannot write into"),
    (["--plot", f"{__file__}/run.png"], "choose another --plot"),
]


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[flags[0] for flags, _ in MISTAKES])
def test_mistakes_are_one_sentence(bench, flags, sentence):
    result, said = bench(*flags, code=2)
    (line,) = [each for each in said.splitlines() if each.startswith("octavo: error: ")]
    assert sentence in line and not result and "Traceback" not in said


def test_a_server_that_is_not_there(capsys):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    assert cli.main(["bench", "serve", "--port", port]) == 2
    said = capsys.readouterr().err
    assert f"no server answers at http://127.0.0.1:{port}: connection refused" in said


def test_every_dataset_has_its_reader():
    assert set(READERS) == set(DATASETS)
