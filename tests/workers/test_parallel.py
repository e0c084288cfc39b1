"""How a model is divided among ranks, and which degrees are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.scheduler.errors import InvalidRequest
from octavo.workers.degree import check_degree
from octavo.workers.model_config import ModelConfig
from octavo.workers.parallel import Shard

SMOL = ModelConfig(
    path="/models/SmolLM2-135M-Instruct",
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_window=None,
    eos_token_ids=(2,),
    dtype="bfloat16",
)
EIGHT = replace(SMOL, num_heads=8, num_kv_heads=2, intermediate_size=128, vocab_size=510)


def accepted(model: ModelConfig, degrees: range) -> list[int]:
    found = []
    for degree in degrees:
        try:
            check_degree(model, degree)
        except InvalidRequest:
            continue
        found.append(degree)
    return found


def test_degrees_that_divide():
    assert accepted(replace(SMOL, intermediate_size=1536), range(0, 20)) == [1, 3]
    assert accepted(replace(SMOL, intermediate_size=1539), range(0, 20)) == [1, 3, 9]
    assert accepted(EIGHT, range(0, 20)) == [1, 2, 4, 8]
    assert accepted(replace(EIGHT, intermediate_size=12), range(0, 20)) == [1, 2, 4]


def test_a_refusal_lists_the_degrees_that_divide():
    with pytest.raises(
        InvalidRequest,
        match=r"tensor_parallel_size 2 does not divide SmolLM2-135M-Instruct \(9 query heads, "
        r"3 KV heads, intermediate size 1536\); use one of 1, 3",
    ) as error:
        check_degree(SMOL, 2)
    assert error.value.param == "tensor_parallel_size"


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_shards_cover_the_model_and_keep_heads_beside_their_kv_heads(size):
    shards = [Shard.of(EIGHT, rank, size) for rank in range(size)]
    for whole, part in (
        (EIGHT.num_heads, "heads"),
        (EIGHT.intermediate_size, "intermediate"),
        (EIGHT.vocab_size, "vocab"),
    ):
        assert [i for shard in shards for i in getattr(shard, part)] == list(range(whole))
    group = EIGHT.num_heads // EIGHT.num_kv_heads
    for shard in shards:
        assert list(dict.fromkeys(head // group for head in shard.heads)) == list(shard.kv_heads)
        assert len(shard.heads) % len(shard.kv_heads) == 0
        assert shard.vocab.start == min(shard.rank * shard.vocab_rows, EIGHT.vocab_size)
        assert len(shard.vocab) <= shard.vocab_rows


def test_a_small_vocabulary_may_leave_the_last_ranks_without_rows():
    shards = [Shard.of(replace(EIGHT, vocab_size=9), rank, 8) for rank in range(8)]
    assert [len(shard.vocab) for shard in shards] == [2, 2, 2, 2, 1, 0, 0, 0]
