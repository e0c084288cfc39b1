from __future__ import annotations

from typing import Any

import pytest

from octavo.scheduler.errors import InvalidRequest, NeverFits
from tests.scheduler.simulation import Simulation, request


@pytest.mark.parametrize(
    ("sampling", "param", "kind"),
    [({"n": 4}, "n", "samples"), ({"beam_width": 4}, "beam_width", "beams")],
)
class TestWidth:
    def test_more_than_can_run_side_by_side(
        self, sampling: dict[str, Any], param: str, kind: str
    ) -> None:
        sim = Simulation(max_num_seqs=3, max_num_batched_tokens=16)
        with pytest.raises(NeverFits) as caught:
            sim.add(request("r", [1], 2, **sampling))
        assert caught.value.param == param
        assert str(caught.value) == (
            f"4 {kind} cannot run side by side: 3 sequences can "
            "(max_num_seqs 3, max_num_batched_tokens 16); ask for fewer"
        )
        assert sim.scheduler.live_requests == [] and sim.scheduler.counters.rejections == 1

    def test_more_than_a_step_has_tokens_for(
        self, sampling: dict[str, Any], param: str, kind: str
    ) -> None:
        sim = Simulation(max_num_seqs=9, max_num_batched_tokens=3)
        with pytest.raises(NeverFits, match=f"4 {kind} cannot run side by side: 3 sequences"):
            sim.add(request("r", [1], 2, **sampling))

    @pytest.mark.parametrize(
        ("size", "max_tokens", "blocks"),
        [(16, 4, 8), (16, 5, 12), (15, 1, 7), (15, 2, 11), (3, 1, 4), (3, 2, 8)],
    )
    def test_more_blocks_than_there_are(
        self, sampling: dict[str, Any], param: str, kind: str, size: int, max_tokens: int,
        blocks: int,
    ) -> None:  # fmt: skip
        """Full blocks of the prompt count once, all others for each."""
        item = request("r", list(range(size)), max_tokens, **sampling)
        sim = Simulation(num_blocks=blocks)  # one of which is the null block
        with pytest.raises(NeverFits) as caught:
            sim.add(item)
        assert caught.value.param == param
        assert str(caught.value) == (
            f"4 {kind} of a prompt of {size} tokens with max_tokens {max_tokens} may need {blocks} "
            f"blocks of 4 tokens, but the whole KV cache has {blocks - 1}: ask for fewer, or for "
            "shorter ones"
        )
        sim = Simulation(num_blocks=blocks + 1)
        sim.add(item)
        sim.run()
        sim.check_answers()
        assert sim.scheduler.counters.peak_blocks <= blocks
        sim.check_empty()

    def test_rows_that_just_suffice(self, sampling: dict[str, Any], param: str, kind: str) -> None:
        sim = Simulation(max_num_seqs=4, max_num_batched_tokens=4)
        sim.add(request("r", list(range(9)), 3, **sampling))
        sim.run()
        sim.check_answers()


@pytest.mark.parametrize("allocation", ["max", "pow2", "oracle"])
@pytest.mark.parametrize(
    ("sampling", "param"), [({"n": 2}, "n"), ({"beam_width": 2}, "beam_width")]
)
def test_what_reserves_memory_takes_one_sequence_a_request(
    allocation: str, sampling: dict[str, Any], param: str
) -> None:
    sim = Simulation(allocation=allocation, max_model_len=64)
    with pytest.raises(InvalidRequest, match=f"^2 .* share memory.*{allocation}: ask for one") as e:
        sim.add(request("r", [1], 2, **sampling))
    assert e.value.param == param
    sim.add(request("r", [1], 2, n=1))
    sim.run()
    sim.check_answers()


def test_lengths_come_with_their_numbers_and_the_cure() -> None:
    sim = Simulation(num_blocks=5, max_model_len=12)
    with pytest.raises(NeverFits) as caught:
        sim.add(request("r", [1] * 9, 4))
    assert caught.value.param == "max_tokens"
    assert str(caught.value) == (
        "the model's context holds 12 tokens, but the prompt has 9 and max_tokens is 4, "
        "together 13: shorten one of them"
    )
    with pytest.raises(InvalidRequest, match="the prompt has no tokens; send at least one"):
        sim.add(request("r", [], 4))
