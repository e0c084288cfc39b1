"""Sizes against published ones, and how a step's time follows from them."""

from __future__ import annotations

import json

import msgspec
import pytest

from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.hardware import PRESETS, find_hardware
from octavo.cluster.simulation.models import NAMED, find_model
from octavo.scheduler.errors import InvalidRequest
from octavo.scheduler.plan import Work

OPT, A100 = NAMED["opt-13b"], PRESETS["a100-40"]


@pytest.mark.parametrize(
    ("name", "billions", "token_bytes"),
    [
        ("opt-13b", 12.9, 819_200),  # DESIGN's and the paper's; 26 GB of weights
        ("opt-66b", 65.7, 2.25 * 2**20),
        ("opt-175b", 174.6, 4.5 * 2**20),
        ("llama-3.1-8b", 8.03, 131_072),
        ("llama-3.1-70b", 70.6, 327_680),
        ("qwen3-8b", 8.19, 147_456),
        ("qwen3-32b", 32.8, 262_144),
        ("smollm2-135m", 0.1345, 23_040),
    ],
)
def test_models_have_their_published_sizes(name, billions, token_bytes):
    model = NAMED[name]
    assert model.weight_bytes / 2e9 == pytest.approx(billions, rel=0.01)
    assert model.token_bytes == token_bytes


def test_a_model_is_read_from_its_config(tmp_path):
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    named = NAMED["qwen3-8b"]
    for where in (tmp_path, tmp_path / "config.json"):
        found = find_model(str(where))
        assert (found.weight_bytes, found.token_bytes) == (named.weight_bytes, named.token_bytes)


def decode(rows, context):
    return [Work(row, context - 1, 1, True) for row in range(rows)]


def test_few_sequences_wait_for_weights_and_many_for_arithmetic():
    cost = Cost(A100, OPT, 1, 16)
    one, many = cost.compute(decode(1, 1)), cost.compute(decode(8, 1))
    assert many == pytest.approx(one, rel=0.01)
    assert one > OPT.weight_bytes / A100.bandwidth  # no faster than memory
    chunk, twice = (cost.compute([Work(0, 0, count, False)]) for count in (2048, 4096))
    assert 1.9 < twice / chunk < 2.3
    assert chunk > 2 * OPT.layer_parameters * 2048 / A100.flops


def test_attention_reads_what_is_cached_and_pays_for_pages():
    cost = Cost(A100, OPT, 1, 16)
    grown = cost.compute(decode(32, 1024)) - cost.compute(decode(32, 512))
    least = 32 * 512 * OPT.token_bytes / A100.bandwidth
    assert least < grown < 2 * least
    times = [Cost(A100, OPT, 1, size).compute(decode(32, 1024)) for size in (1, 4, 16, 256)]
    whole = Cost(A100, OPT, 1, 16, paged=False).compute(decode(32, 1024))
    assert times == sorted(times, reverse=True) and times[-1] > whole


def test_ranks_share_the_work_and_pay_for_talking():
    alone, four = (Cost(A100, OPT, ranks, 16).compute(decode(16, 512)) for ranks in (1, 4))
    assert alone / 4 < four < alone
    tied = msgspec.structs.replace(A100, link=1e6)
    assert Cost(tied, OPT, 4, 16).compute(decode(16, 512)) > alone


def test_copies_cost_their_bytes_and_their_number():
    one, forty = Cost(A100, OPT, 1, 16), Cost(A100, OPT, 1, 16, copies=80)
    assert one.copy(10) == pytest.approx(10 * (1e-5 + 16 * 819_200 / 25e9))
    assert forty.copy(10) - one.copy(10) == pytest.approx(10 * 79e-5)


def test_hardware_comes_from_a_file_too(tmp_path):
    file = tmp_path / "mine.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(A100, name="mine", flops=1e12)))
    assert find_hardware(str(file)).flops == 1e12
    for content, said in (
        ("{", "truncated"),
        ('{"name": "x"}', "missing required field"),
        ('{"name": "x", "memroy": 1}', "memroy"),
    ):
        file.write_text(content)
        with pytest.raises(InvalidRequest, match=said):
            find_hardware(str(file))
    with pytest.raises(InvalidRequest, match="h300.*a100-40"):
        find_hardware("h300")
