"""The stream as the client takes it in, whatever way its bytes are cut; prompts and bodies."""

import itertools
import json

import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.cluster.bench.answers import Answer
from octavo.cluster.bench.bodies import Bodies
from octavo.cluster.bench.client import Stream
from octavo.cluster.bench.prompts import UNKNOWN_VOCABULARY, Prompts, Words, ordinary_tokens
from octavo.cluster.text.tokens import Tokenizer
from octavo.cluster.traces.request import Piece, Request
from octavo.scheduler.errors import InvalidRequest
from tests.cluster import text_models

SHARED = Piece("shared", 40)
FIRST = Request((SHARED, Piece(1, 8)), 5)
SECOND = Request((SHARED, Piece(2, 8)), 5)


def spaced_words():
    """GPT-2's kind, with a token for each of a hundred words and the space before it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = ["".join(each) for each in itertools.product("bdgkm", "aeiou", "nrst")]
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False)
    tokenizer.train_from_iterator([" " + " ".join(words)] * 3, trainer)
    return tokenizer


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def completion(text, finish=None):
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def chat(delta, finish=None):
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"


def take(*pieces, sent=10.0):
    """The answer to pieces that come at 11, 12 and so on."""
    answer = Answer(sent=sent)
    stream = Stream(answer)
    for number, piece in enumerate(pieces):
        stream.feed(piece, 11.0 + number)
    stream.finish()
    return answer


def test_a_completion():
    answer = take(completion("a"), completion(""), completion("b", "length"), USAGE, DONE)
    assert (answer.ttft, answer.itls, answer.latency) == (1.0, [1.0, 1.0], 3.0)
    assert (answer.prompt_len, answer.output_len, answer.text) == (7, 3, "ab")
    assert answer.error == "" and answer.tpot == 1.0


def test_a_chats_first_event_that_brings_something_is_the_first_token():
    answer = take(
        chat({"role": "assistant", "content": ""}),
        chat({"reasoning_content": "hm"}),
        chat({"content": "a"}),
        chat({}, "stop"),
        USAGE,
        DONE,
    )
    assert (answer.ttft, answer.itls, answer.text) == (2.0, [1.0, 1.0], "a")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_may_be_cut_anywhere(size):
    whole = b": ping\n\n" + completion("é") + completion("b", "stop") + USAGE + DONE
    whole = whole.replace(b"\n\n", b"\r\n\r\n") if size == 7 else whole
    answer = take(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert (answer.text, answer.output_len, answer.error, len(answer.itls)) == ("éb", 3, "", 1)


def test_answers_that_do_not_end_well():
    assert take(completion("a")).error == "the answer broke off"
    assert take(USAGE, DONE).error == "the answer had no token"
    failed = take(completion("a"), event({"error": {"message": "the worker died", "code": 500}}))
    assert failed.error == "the server ended the answer: the worker died"
    with pytest.raises(msgspec.DecodeError):
        take(b"data: {]\n\n")


def test_equal_pieces_are_equal_tokens():
    prompts = Prompts(UNKNOWN_VOCABULARY, seed=1)
    one, two = prompts.tokens(FIRST), prompts.tokens(SECOND)
    assert len(one) == FIRST.prompt_len == 48
    assert one[:40] == two[:40] and one[40:] != two[40:]
    assert one == Prompts(UNKNOWN_VOCABULARY, seed=1).tokens(FIRST)
    assert one[:40] != Prompts(UNKNOWN_VOCABULARY, seed=2).tokens(FIRST)[:40]
    shorter = prompts.tokens(Request((Piece("shared", 13),), 1))
    assert shorter == one[:13]


def test_numbers_and_texts_are_other_names():
    prompts = Prompts(UNKNOWN_VOCABULARY, seed=1)
    assert prompts.tokens(Request((Piece(1, 9),), 1)) != prompts.tokens(
        Request((Piece("1", 9),), 1)
    )


def test_ordinary_tokens_are_none_that_are_special():
    tokenizer = Tokenizer(text_models.byte_level(), vocab_size=1000)
    tokens = ordinary_tokens(tokenizer)
    assert not tokenizer.special_ids & set(tokens)
    assert max(tokens) < 421 and len(tokens) > 300


def test_a_text_of_words_becomes_the_same_tokens_again():
    tokenizer = Tokenizer(spaced_words())
    words = Words(tokenizer)
    prompts = Prompts(words.tokens, seed=0)
    one, two = (words.text(prompts.tokens(each)) for each in (FIRST, SECOND))
    ids = tokenizer.encode(one)
    assert ids == prompts.tokens(FIRST)
    assert tokenizer.encode(two)[:40] == ids[:40]


def test_a_tokenizer_without_such_words_is_refused():
    with pytest.raises(InvalidRequest, match="--prompt-format ids"):
        Words(Tokenizer(text_models.byte_fallback()))


def bodies(**changes):
    given = {"chat": False, "prompt_format": None, "tokenizer": None, "seed": 0, "fields": {}}
    return Bodies("m", **{**given, **changes})


def test_bodies():
    body = json.loads(bodies(fields={"top_k": 3}).encode(FIRST))
    assert len(body.pop("prompt")) == 48
    assert body == {
        "model": "m",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 3,
    }
    spoken = Request((), 5, text="Hello")
    assert json.loads(bodies().encode(spoken))["prompt"] == "Hello"
    body = json.loads(bodies(chat=True).encode(spoken))
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert body["max_completion_tokens"] == 5


def test_bodies_that_cannot_be_made():
    with pytest.raises(InvalidRequest, match="a chat takes text"):
        bodies(chat=True, prompt_format="ids")
    with pytest.raises(InvalidRequest, match="--tokenizer"):
        bodies(chat=True).encode(FIRST)
