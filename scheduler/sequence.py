"""The scheduler's own, mutable view of one request's token stream."""

from __future__ import annotations

from octavo.scheduler.hashing import extend_chain, root_hash
from octavo.scheduler.request import Finish, Logprob, Request


class Sequence:
    """Tokens known and tokens computed; a step closes the gap. There are no phases.

    `tokens` are known; `pending` more are being sampled by steps in flight. `granted` tokens were
    handed to the workers to compute, `computed` of them are confirmed by a result. `epoch` counts
    admissions and preemptions, so that a result can tell whether the table it wrote still exists.
    """

    __slots__ = (
        "admitted_at",
        "arrived",
        "cached",
        "chain",
        "computed",
        "epoch",
        "finish",
        "first_token_at",
        "granted",
        "limit",
        "number",
        "pending",
        "preemptions",
        "priority",
        "prompt_len",
        "prompt_logprobs",
        "published",
        "request",
        "root",
        "row",
        "stop",
        "table",
        "tokens",
        "waits_for",
    )

    def __init__(self, request: Request, number: int, now: float, salt: str) -> None:
        sampling = request.sampling
        assert sampling.max_tokens is not None and sampling.seed is not None
        self.request = request
        self.number = number  # order of arrival
        self.priority = request.priority
        self.arrived = now
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.limit = self.prompt_len + sampling.max_tokens
        self.stop = frozenset(sampling.stop_token_ids)
        self.pending = 0
        self.granted = 0
        self.computed = 0
        self.epoch = 0
        self.row: int | None = None
        self.table: list[int] = []
        self.root = root_hash(salt)
        self.chain: list[bytes] = []
        self.published = 0  # blocks of the table, from its start, whose content is final
        self.waits_for: bytes | None = None
        self.cached = 0
        self.preemptions = 0
        self.prompt_logprobs: list[Logprob | None] | None = (
            None if sampling.prompt_logprobs is None else [None]
        )
        self.finish: Finish | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    def remaining(self) -> int:
        """Tokens that are known, or will be before the next step runs, and not yet granted. The
        last token of an answer is never computed: nothing follows it."""
        known = len(self.tokens) + self.pending
        return (known if known < self.limit or known == self.prompt_len else known - 1) - (
            self.granted
        )

    def restart(self) -> None:
        """Its blocks were taken: what was computed must be found or computed again."""
        self.epoch += 1
        self.preemptions += 1
        if self.wants_prompt_logprobs():
            self.prompt_logprobs = [None]

    def wants_prompt_logprobs(self) -> bool:
        """Whether the prompt must be computed whole, without hits, to score its tokens."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    def take_prompt_logprobs(self, entries: list[Logprob]) -> None:
        """Entries of the next prompt tokens, in order."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs.extend(entries)
        assert len(self.prompt_logprobs) <= self.prompt_len

    def hashes(self, block_size: int) -> list[bytes]:
        """Names of all full blocks of the known tokens, computed once."""
        if (len(self.chain) + 1) * block_size <= len(self.tokens):
            extend_chain(self.chain, self.root, self.tokens, block_size)
        return self.chain
