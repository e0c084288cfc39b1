"""A step as large as any will be, or as large as a part of it: what memory it takes is measured."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.plan import Add, StepPlan, Work
from octavo.scheduler.sampling import SamplingParams

PARTS = (16, 4, 2)  # a step is tried at a sixteenth of its size, at a quarter and at a half first


@dataclass(frozen=True, slots=True)
class StepSize:
    """Tokens in at most so many rows, as --max-num-batched-tokens and --max-num-seqs bound them."""

    tokens: int
    rows: int

    def rising(self) -> list[StepSize]:
        """Smaller sizes, each once, then this."""
        parts = [StepSize(max(1, self.tokens // n), max(1, self.rows // n)) for n in (*PARTS, 1)]
        return list(dict.fromkeys(parts))

    @property
    def flags(self) -> str:
        return f"--max-num-batched-tokens {self.tokens} and --max-num-seqs {self.rows}"

    def __str__(self) -> str:
        return f"{self.tokens} tokens and {self.rows} sequences"


def largest_plan(
    size: StepSize, max_model_len: int, block_size: int, adapter: str
) -> tuple[StepPlan, int]:
    """All the tokens of a step, in as many rows as may sample at once, all asking for everything,
    all but one with the adapter if it has a name; and how many blocks it needs, the null block
    included."""
    count = min(size.rows, size.tokens)
    share = min(-(-size.tokens // count), max_model_len)
    blocks = list(range(1, -(-share // block_size) + 1))  # all rows may write the same ones
    sampling = SamplingParams(top_p=0.9, seed=0, logprobs=1, prompt_logprobs=1)
    add = [
        Add(row, [0] * share, share, blocks, 0, sampling, adapter if row else "")
        for row in range(count)
    ]
    work = [Work(row, 0, share, True) for row in range(count)]
    return StepPlan(step=0, work=work, add=add, reset=True), len(blocks) + 1
