"""What transformers' beam search answers in float32, and by how much its choices were clear."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo import RequestOutput

TIE = 2e-5  # totals closer than this may change places between two orders of summation


@dataclass(frozen=True)
class Beam:
    """The generated tokens, with the stop token if there is one, and the score that ranks them."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Search:
    """All final beams of one prompt, best first. `margin` is the least difference, in nats, between
    neighbours among the candidates of a step."""

    beams: list[Beam]
    margin: float


class Oracle:
    """`model` is a checkpoint's directory, `filler` a token that no prompt or answer contains: it
    fills prompts up to one length, and transformers penalises its repetition. `batch` prompts are
    searched at once."""

    def __init__(self, model: Path, filler: int, batch: int) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._filler = filler
        self._size = batch

    def search(
        self, prompts: Sequence[Sequence[int]], width: int, length: int, stops: Sequence[int],
        **settings: Any,
    ) -> list[Search]:  # fmt: skip
        """`settings` are arguments of `generate`: length_penalty, early_stopping,
        repetition_penalty."""
        found: dict[int, Search] = {}
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        for first in range(0, len(order), self._size):
            numbers = order[first : first + self._size]
            batch = [list(prompts[number]) for number in numbers]
            found |= zip(numbers, self._batch(batch, width, length, stops, settings), strict=True)
        return [found[number] for number in range(len(prompts))]

    def _batch(
        self, prompts: list[list[int]], width: int, length: int, stops: Sequence[int],
        settings: dict[str, Any],
    ) -> Iterator[Search]:  # fmt: skip
        padded = max(map(len, prompts))
        missing = [padded - len(prompt) for prompt in prompts]
        rows = zip(missing, prompts, strict=True)
        ids = torch.tensor([[self._filler] * count + prompt for count, prompt in rows])
        mask = torch.tensor([[0] * count + [1] * (padded - count) for count in missing])
        margins = [math.inf] * len(prompts)
        continuations = self._model._get_top_k_continuations

        def watched(**arguments: Any) -> Any:
            result = continuations(**arguments)
            for number, totals in enumerate(result[0]):
                margins[number] = min(margins[number], (totals[:-1] - totals[1:]).min().item())
            return result

        self._model._get_top_k_continuations = watched
        with torch.inference_mode():
            answer = self._model.generate(
                ids, attention_mask=mask, num_beams=width, num_return_sequences=width,
                do_sample=False, max_new_tokens=length, eos_token_id=list(stops),
                pad_token_id=self._filler, return_dict_in_generate=True, output_scores=True,
                **settings,
            )  # fmt: skip
        self._model._get_top_k_continuations = continuations
        sequences = answer.sequences[:, padded:].tolist()
        pairs = zip(sequences, answer.sequences_scores.tolist(), strict=True)
        beams = [Beam(_until_stop(tokens, stops), score) for tokens, score in pairs]
        for number, margin in enumerate(margins):
            yield Search(beams[number * width : (number + 1) * width], margin)


def _until_stop(tokens: list[int], stops: Sequence[int]) -> list[int]:
    places = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: places[0] + 1] if places else tokens


def beams_of(output: RequestOutput) -> list[Beam]:
    """An engine's answers in the same form."""
    beams = []
    for one in output.outputs:
        assert one.score is not None
        beams.append(Beam(one.token_ids, one.score))
    return beams


def assert_same_beams(outputs: list[RequestOutput], searches: list[Search]) -> None:
    """Every beam token for token, and its score; where they differ, transformers must have chosen
    between candidates that tie."""
    for number, (output, search) in enumerate(zip(outputs, searches, strict=True)):
        found = beams_of(output)
        wanted = search.beams[: len(found)]
        if [beam.tokens for beam in found] != [beam.tokens for beam in wanted]:
            assert search.margin < TIE, (
                f"prompt {number}: {found}, not {wanted}, and no candidates were closer than "
                f"{search.margin:.1e}"
            )
            continue
        for one, other in zip(found, wanted, strict=True):
            assert math.isclose(one.score, other.score, rel_tol=1e-4, abs_tol=1e-5), (one, other)
