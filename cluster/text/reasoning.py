"""What a model thinks before it answers, told apart from the answer: `<think>…</think>`.

Models differ in who writes the first marker. Templates of DeepSeek-R1 and of Qwen3's thinking
models end the prompt with it; Qwen3 writes it itself, if it thinks at all. So it is looked up in
the prompt; only where the prompt says nothing do the two kinds differ.
"""

from __future__ import annotations

from typing import Literal

from octavo.cluster.text.pieces import Machine, Reading

ReasoningKind = Literal["deepseek_r1", "qwen3"]
START, END = "<think>", "</think>"


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends inside a block of reasoning."""
    return prompt.rstrip().endswith(START)


def closes_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with a closed block: there is to be no reasoning."""
    return prompt.rstrip().endswith(END)


def expected_reasoning(kind: ReasoningKind, prompt: str) -> Literal["begun", "possible", "none"]:
    """What an answer to the prompt begins with."""
    if opens_reasoning(prompt):
        return "begun"
    if closes_reasoning(prompt):
        return "none"
    return "begun" if kind == "deepseek_r1" else "possible"


class ReasoningReader(Machine):
    """Content pieces are the answer, with white space around the markers left out.

    `deepseek_r1` reasons from the first character, `qwen3` behind a `<think>` that comes before
    anything else. Reasoning that does not end is the whole answer.
    """

    def __init__(self, kind: ReasoningKind, prompt: str) -> None:
        expected = expected_reasoning(kind, prompt)
        self._begins = expected == "begun"
        self.reasoning = self._begins
        self.may_begin = expected != "none"
        super().__init__()

    def _read(self) -> Reading[None]:
        if self.may_begin:
            self._at_end = "reasoning" if self._begins else "content"
            if (yield from self._opening()) or self._begins:
                self.reasoning = True
                self._at_end = "reasoning"
                yield from self._skip_space()
                yield from self._thought()
                self.reasoning = False
                yield from self._skip_space()
        yield from self._rest("content")

    def _opening(self) -> Reading[bool]:
        yield from self._solid()
        self._unread()
        if (yield from self._matches(START)):
            self._emit("markup")
            return True
        self._unread_all()
        return False

    def _thought(self) -> Reading[None]:
        """Up to the end marker. White space in front of it is held back, as it is no thought."""
        matched = 0
        while matched < len(END):
            character = yield from self._next()
            if character == END[matched]:
                matched += 1
            elif character == END[0]:
                matched = 1
            else:
                matched = 0
                if not character.isspace():
                    self._emit("reasoning")
        thought = "".join(self._held)[: -len(END)].rstrip()
        self._unread(len(self._held) - len(thought))
        self._emit("reasoning")
        while self._again:
            yield from self._next()
        self._emit("markup")
