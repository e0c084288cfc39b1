"""What is read of an answer does not depend on how its tokens arrive."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cluster.api.message import Draft, whole_message
from octavo.cluster.api.read_transcript import ReadTranscript
from octavo.cluster.api.transcript import Delta
from octavo.cluster.text.answer_reader import AnswerReader
from octavo.cluster.text.reasoning import ReasoningReader
from octavo.cluster.text.stops import StopStrings
from octavo.cluster.text.tool_calls import HermesCalls, Llama3Calls
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.test_tool_calls import FRAGMENTS, TOOLS
from tests.cluster.text_models import BYTE_LEVEL

TEXTS = st.lists(st.sampled_from([*FRAGMENTS, "</think>", " ", "\n"]), max_size=12).map("".join)
STOPS = st.lists(st.sampled_from(["add", "x", "{", "\n", "<", "你", "call>", "ar"]), max_size=2)
CUTS = st.lists(st.integers(1, 6), max_size=20)
READERS: dict[str, Any] = {"hermes": HermesCalls, "llama": Llama3Calls, "none": None}


def play(
    text: str, cuts: list[int], calls: str, single: bool, sampling: SamplingParams
) -> tuple[list[Delta], ReadTranscript]:
    ids = BYTE_LEVEL.encode(text)
    make = READERS[calls]
    reader = AnswerReader(ReasoningReader("qwen3", ""), make and make(TOOLS, single=single))
    request = Request("r", [5], sampling)
    stops = StopStrings(sampling.stop)
    transcript = ReadTranscript(BYTE_LEVEL, request, sampling, stops, reader=reader)
    deltas, start = [], 0
    for length in [*cuts, *[1] * (len(ids) + 1)]:
        run = ids[start : start + length]
        start += length
        event = TokenEvent("r", run, logprobs=[Logprob(token, -1.0, 1) for token in run])
        event.finish = Finish.LENGTH if start >= len(ids) else None
        deltas.append(transcript.feed(event))
        if deltas[-1].finish:
            break
    return deltas, transcript


@settings(deadline=None, max_examples=150)
@given(TEXTS, STOPS, CUTS, st.sampled_from(sorted(READERS)), st.booleans())
def test_deltas_join_to_the_same_message(
    text: str, stops: list[str], cuts: list[int], calls: str, single: bool
) -> None:
    sampling = SamplingParams(stop=tuple(stops))
    played = [play(text, each, calls, single, sampling) for each in (cuts, [10**6])]
    messages = []
    for deltas, _ in played:
        draft = Draft("choice", tools=calls != "none")
        messages.append(whole_message(each for delta in deltas for each in draft.add(delta)))
    assert messages[0] == messages[1]
    (cut, one), (whole, other) = played
    assert "".join(delta.text for delta in cut) == whole[0].text
    assert [each for delta in cut for each in delta.tokens] == whole[0].tokens
    assert cut[-1].finish == whole[-1].finish
    assert (one.generated, one.reasoning_tokens) == (other.generated, other.reasoning_tokens)
    for deltas, _ in played:
        assert "".join(piece.raw for delta in deltas for piece in delta.parts) == whole[0].text


@settings(deadline=None, max_examples=100)
@given(TEXTS, STOPS, CUTS, st.sampled_from(sorted(READERS)))
def test_logprobs_never_run_ahead_of_what_is_certain(
    text: str, stops: list[str], cuts: list[int], calls: str
) -> None:
    deltas, _ = play(text, cuts, calls, False, SamplingParams(stop=tuple(stops)))
    shown, raw = "", b""
    for delta in deltas[:-1]:
        shown += delta.text
        raw += b"".join(BYTE_LEVEL.bytes_of(each.logprob.token) for each in delta.tokens)
        assert shown.encode().startswith(raw)
