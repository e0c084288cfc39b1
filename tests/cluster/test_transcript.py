"""One choice's text and logprobs do not depend on how its tokens arrive."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.cluster.api.transcript import Delta, Transcript
from octavo.cluster.text.stops import StopStrings
from octavo.scheduler.request import Finish, Logprob, Request, TokenEvent
from octavo.scheduler.sampling import SamplingParams
from tests.cluster.text_models import BYTE_LEVEL

WORDS = ["The", " quick", " world", " brown", "a", "é", "你", "😀", " ", "\n"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=10).map("".join)
STOPS = st.lists(st.sampled_from(["qu", "uic", "he", "ld a", "k ", " w", "你", "wn"]), max_size=3)
CUTS = st.lists(st.integers(1, 4), max_size=20)
END = 1


def play(text: str, cuts: list[int], finish: Finish, sampling: SamplingParams) -> list[Delta]:
    """The deltas of a generated text whose tokens come in events of the given sizes."""
    tokens = BYTE_LEVEL.encode(text) + ([END] if finish is Finish.STOP else [])
    request = Request("r", [5], sampling)
    transcript = Transcript(BYTE_LEVEL, request, sampling, StopStrings(sampling.stop))
    deltas, start = [], 0
    for length in [*cuts, *[1] * (len(tokens) + 1)]:
        run = tokens[start : start + length]
        start += length
        event = TokenEvent("r", run, logprobs=[Logprob(token, -1.0, 1) for token in run])
        if start >= len(tokens):
            event.finish = finish
            event.stop_token = END if finish is Finish.STOP else None
        deltas.append(transcript.feed(event))
        if deltas[-1].finish:
            break
    return deltas


@settings(deadline=None)
@given(TEXTS, STOPS, CUTS, st.sampled_from([Finish.STOP, Finish.LENGTH]), st.booleans())
def test_chunks_join_to_the_same_text_and_logprobs(
    text: str, stops: list[str], cuts: list[int], finish: Finish, include: bool
) -> None:
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=include)
    deltas = play(text, cuts, finish, sampling)
    whole = play(text, [10**6], finish, sampling)
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in whole)
    assert [each for delta in deltas for each in delta.tokens] == [
        each for delta in whole for each in delta.tokens
    ]
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish == whole[-1].finish is not None


@settings(deadline=None, max_examples=200)
@given(TEXTS, STOPS, CUTS)
@example(" quick a", ["k x"], [])
@example(" quick a", ["k a"], [])
@example(" quick world", ["ui"], [])
def test_logprobs_never_run_ahead_of_the_text(text: str, stops: list[str], cuts: list[int]) -> None:
    """So that no entry tells of a stop string, or of what may become one."""
    deltas = play(text, cuts, Finish.LENGTH, SamplingParams(stop=tuple(stops)))
    shown, raw = "", b""
    for delta in deltas[:-1]:
        shown += delta.text
        raw += b"".join(BYTE_LEVEL.bytes_of(each.logprob.token) for each in delta.tokens)
        assert shown.encode().startswith(raw)
    stopped = any(stop in text for stop in stops)
    tokens = [each for delta in deltas for each in delta.tokens]
    if not stopped:
        assert [each.logprob.token for each in tokens] == BYTE_LEVEL.encode(text)
    for each in tokens:
        assert not stopped or each.offset < len(shown + deltas[-1].text)


def test_totals_count_the_stop_string_and_the_end_token() -> None:
    sampling = SamplingParams(stop=("b",))
    request = Request("r", [5], sampling)
    transcript = Transcript(BYTE_LEVEL, request, sampling, StopStrings(("b",)))
    tokens = BYTE_LEVEL.encode("a\nb")
    logprobs = [Logprob(token, -2.0, 1) for token in tokens]
    delta = transcript.feed(TokenEvent("r", tokens, logprobs=logprobs, cached_tokens=3))
    assert (delta.text, delta.finish) == ("a\n", "stop")
    assert transcript.generated == 3
    assert transcript.mean_logprob == -2.0
    assert transcript.cached_tokens == 3


def test_a_stop_token_of_the_clients_is_no_text_either() -> None:
    for include, text in ((False, "a"), (True, "ab")):
        sampling = SamplingParams(include_stop_str_in_output=include)
        request = Request("r", [5], sampling)
        transcript = Transcript(BYTE_LEVEL, request, sampling, StopStrings(()))
        tokens = [BYTE_LEVEL.encode(c)[0] for c in "ab"]
        event = TokenEvent("r", tokens, Finish.STOP, stop_token=tokens[-1])
        assert transcript.feed(event).text == text
