"""`octavo bench throughput` and `latency`, on a tiny model in this process."""

import json

import pytest

from octavo.cluster.cli import main as cli

SMALL = ["--num-gpu-blocks-override", "64", "--num-threads", "1", "--dtype", "float32"]


def test_throughput(tiny_model, capsys, tmp_path):
    saved = tmp_path / "throughput.json"
    flags = ["--model", str(tiny_model()), *SMALL, "--output-json", str(saved)]
    flags += ["--num-prompts", "5", "--input-len", "20", "--output-len", "4", "--n", "2"]
    assert cli.main(["bench", "throughput", *flags]) == 0
    result = json.loads(saved.read_text())
    assert result["num_requests"] == 5 and result["total_num_tokens"] == 5 * (20 + 2 * 4)
    assert result["tokens_per_second"] * result["elapsed_time"] == pytest.approx(140)
    assert 0 < result["peak_kv_cache_usage"] < 1
    said = capsys.readouterr().out
    assert "requests/s" in said and "Total num output tokens:  40" in said


def test_latency(tiny_model, capsys, tmp_path):
    saved = tmp_path / "latency.json"
    flags = ["--model", str(tiny_model()), *SMALL, "--output-json", str(saved)]
    flags += ["--batch-size", "2", "--input-len", "8", "--output-len", "3"]
    flags += ["--num-iters", "4", "--num-iters-warmup", "1"]
    assert cli.main(["bench", "latency", *flags]) == 0
    result = json.loads(saved.read_text())
    assert len(result["latencies"]) == 4
    assert min(result["latencies"]) <= result["percentiles"]["50"] <= max(result["latencies"])
    assert "Avg latency: " in capsys.readouterr().out


def test_mistakes_are_one_sentence(capsys, tmp_path):
    assert cli.main(["bench", "throughput", "--model", str(tmp_path / "none")]) == 2
    assert "there is no directory" in capsys.readouterr().err
    assert cli.main(["bench", "latency", "--output-json", f"{__file__}/below.json"]) == 2
    assert "choose another --output-json" in capsys.readouterr().err
    assert cli.main(["bench", "latency", "--batch-size", "0"]) == 2
    assert "--batch-size must be at least 1, got 0" in capsys.readouterr().err
