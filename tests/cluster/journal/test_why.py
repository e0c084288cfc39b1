"""Each cause for which a request does not run, brought about, and the sentence for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.cluster.journal.errors import JournalError
from octavo.cluster.journal.why import why
from octavo.scheduler.request import Request
from tests.cluster.journal.driving import Recorded
from tests.scheduler.simulation import request


def told(path: Path, name: str) -> str:
    """All that is said of a request, times apart."""
    return "\n".join(re.sub(r"\+\d+\.\d+ s ", "", line) for line in why(name, path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def distinct(name: str, size: int, max_tokens: int = 4, **more: object) -> Request:
    base = sum(map(ord, name))
    return request(name, [(base + i) % 60 for i in range(size)], max_tokens, **more)  # type: ignore[arg-type]


def test_a_life_from_arrival_to_end(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("one", 25, 6))
    engine.run()
    engine.close()
    lines = told(path, "one").splitlines()
    assert lines[0] == "request one"
    assert lines[1] == "   before step 0: it arrived with 25 prompt tokens"
    assert lines[2] == "   steps 0-7: it ran: 30 tokens computed"
    assert lines[-1].endswith("it ended at its full length")


def test_no_rows(path: Path) -> None:
    engine = Recorded(path, num_blocks=64, max_num_seqs=1)
    engine.add(distinct("first", 4, 9), distinct("second", 4), distinct("third", 4))
    engine.run()
    engine.close()
    text = told(path, "second")
    assert "it waited for rows: max_num_seqs are taken (0 free, 1 needed)" in text
    behind = "it waited behind second, which waited for rows: max_num_seqs are taken"
    assert behind in told(path, "third")
    assert len(text.splitlines()) <= 6, "equal steps are one line"


def test_no_tokens_left_in_a_step(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("long", 38), distinct("short", 4))
    engine.run()
    engine.close()
    words = "it waited as others took all tokens of the step (max_num_batched_tokens is 10)"
    assert words in told(path, "short")


def test_no_tokens_left_for_the_rest_of_a_prompt(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("a", 19), distinct("b", 20))
    assert engine.plan() and engine.plan()  # the second has a token of b
    engine.lose()
    engine.run()
    engine.close()
    words = "it computed nothing, as others took all tokens of the step"
    assert words in told(path, "b")


def test_no_blocks(path: Path) -> None:
    engine = Recorded(path, num_blocks=11, watermark_low=0.0, watermark_high=0.0)
    engine.add(distinct("big", 30, 6), distinct("small", 12))
    engine.run()
    engine.close()
    assert re.search(r"it waited for blocks: 3 needed, [012](?: to 2)? free\n", told(path, "small"))


def test_blocks_kept_by_the_watermark(path: Path) -> None:
    engine = Recorded(path, num_blocks=11, watermark_low=0.2, watermark_high=0.2)
    engine.add(distinct("big", 25, 6), distinct("small", 8))
    engine.run()
    engine.close()
    assert "blocks: 2 needed, 2 to 3 free, 2 of them kept (watermark)" in told(path, "small")


def test_below_the_watermark(path: Path) -> None:
    engine = Recorded(path, num_blocks=11, watermark_low=0.4, watermark_high=0.6)
    engine.add(distinct("big", 28, 3))
    engine.step()
    engine.add(distinct("small", 3))
    engine.run()
    engine.close()
    text = told(path, "small")
    assert "it waited below the watermark: " in text and "blocks were free, and 6 must be" in text


def test_the_same_prefix_is_being_computed(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(request("a", list(range(30)), 2), request("b", list(range(30)), 2))
    engine.run()
    engine.close()
    words = "it waited for a block that another request was computing, to share it"
    assert words in told(path, "b")


@pytest.mark.parametrize(
    ("mode", "hosts", "outcome"),
    [
        ("swap", 40, "its blocks were copied to the host"),
        ("recompute", 0, "what it had computed is to be found or computed again"),
        ("swap", 1, "the host had no room for its blocks, so they are to be computed again"),
    ],
)
def test_preempted_for_whom(path: Path, mode: str, hosts: int, outcome: str) -> None:
    engine = Recorded(path, num_blocks=11, num_host_blocks=hosts, preemption_mode=mode)
    engine.add(distinct("first", 14, 24), distinct("last", 12, 24))
    engine.run()
    engine.close()
    text = told(path, "last")
    assert f"it was preempted for first, which needed blocks; {outcome}" in text
    assert ("(swapped out: its blocks were on the host)" in text) == (outcome.endswith("the host"))
    assert "for the result of a step in flight" in text or "lets nobody in" in text


def test_samples_and_their_aborts(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("many", 9, 8, n=3, priority=2))
    for _ in range(4):
        engine.step()
    engine.recorder.abort("many", 1)
    engine.step()
    engine.recorder.abort("many")
    engine.close()
    text = told(path, "many")
    assert "9 prompt tokens, for 3 sequences, at priority 2" in text
    assert "its sample 1 was aborted" in text
    assert text.endswith("it was aborted")


def test_a_request_that_goes_on_through_two_files(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("one", 9, 12))
    for _ in range(4):
        engine.step()
    engine.recorder.turn_over(engine.now)
    engine.step()
    engine.close()
    text = told(path, "one")
    assert "it ran: " in text and text.endswith("the journal ends while it is live")
    assert len(text.splitlines()) == 4, "one line for what ran before and after"


def test_several_prompts_of_one_call_and_unknown_ones(path: Path) -> None:
    engine = Recorded(path, num_blocks=64)
    engine.add(distinct("cmpl-7-0", 4), distinct("cmpl-7-1", 5))
    engine.run()
    engine.close()
    assert told(path, "cmpl-7").count("request cmpl-7-") == 2
    with pytest.raises(JournalError) as caught:
        why("cmpl-8", path)
    words = f"no request 'cmpl-8' is in {path}; the last ones are: cmpl-7-1, cmpl-7-0"
    assert str(caught.value) == words
