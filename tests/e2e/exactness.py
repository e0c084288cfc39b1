"""What transformers answers, greedily, for comparing token by token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

TIE = 1e-3  # logits closer than this may change places between two orders of summation

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics state that",
    "Dear Sir or Madam,\n\nI am writing to",
    "List of prime numbers: 2, 3, 5, 7,",
    "In 1969, the Apollo 11 mission",
    "To bake a simple loaf of bread, you need",
    "The difference between a virus and a bacterium is",
    "SELECT name, age FROM users WHERE",
    "Photosynthesis is the process by which plants",
    "My favourite book as a child was",
    "The stock market fell sharply on Monday after",
    "Water boils at 100 degrees Celsius because",
    "A haiku about the autumn wind:\n",
    "If a train leaves the station at 3:15 and travels for 2 hours and 50 minutes, it arrives at",
    "The mitochondrion is often called",
    "El gato se sentó en la ventana y",
    "Instructions for assembling the bookshelf:\n1.",
    "It was the best of times, it was the worst of times, and "
    "the streets of the city were full of people who had come from far away to see the king.",
]


@dataclass(frozen=True)
class Reference:
    """One answer, and by how much each of its tokens led the runner-up."""

    tokens: list[int]
    margins: list[float]


def greedy(
    model_path: Path, prompts: list[list[int]], length: int, dtype: torch.dtype = torch.float32
) -> list[Reference]:
    """All prompts in one left-padded batch; end tokens do not end."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    tokens, margins, cache = [], [], None
    with torch.inference_mode():
        for _ in range(length):
            out = model(
                input_ids=ids, attention_mask=mask, position_ids=positions,
                cache=cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            cache = out.past_key_values
            top = out.logits[:, -1].float().topk(2)
            ids = top.indices[:, :1]
            tokens.append(ids[:, 0].tolist())
            margins.append((top.values[:, 0] - top.values[:, 1]).tolist())
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            positions = positions[:, -1:] + 1
    return [
        Reference(list(t), list(m))
        for t, m in zip(zip(*tokens, strict=True), zip(*margins, strict=True), strict=True)
    ]


def assert_identical(
    answers: list[list[int]], references: list[Reference], tie: float = TIE
) -> None:
    """Token for token; after a tie, a lead of less than `tie`, an answer may go its own way."""
    for number, (answer, reference) in enumerate(zip(answers, references, strict=True)):
        assert len(answer) == len(reference.tokens)
        for place, (got, want) in enumerate(zip(answer, reference.tokens, strict=True)):
            if got != want:
                margin = reference.margins[place]
                assert margin < tie, (
                    f"prompt {number}, token {place}: {got}, not {want} (which led by {margin:.4f})"
                )
                break
