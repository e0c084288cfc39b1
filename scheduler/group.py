"""One request in the scheduler: its sequences share a prompt, run and are preempted as one."""

from __future__ import annotations

import msgspec

from octavo.scheduler.beams import BeamSearch
from octavo.scheduler.hashing import root_hash
from octavo.scheduler.request import Finish, Request
from octavo.scheduler.sequence import Sequence


class Group:
    """`sequences` are those that have not ended. There is one until the prompt is computed: then
    samples are forked from it, or the first beams. Those of a request to be resumed are there from
    the start.

    `scope` names what besides the tokens the content depends on, see `hashing.root_hash`. The
    prompt is the sequences' alone: `request` has none.
    """

    __slots__ = (
        "admitted_at",
        "arrived",
        "beams",
        "cached",
        "finish",
        "first_token_at",
        "forked",
        "generated",
        "id",
        "indices",
        "longest",
        "moved",
        "number",
        "only",
        "plain",
        "preemptions",
        "priority",
        "prompt_len",
        "queued_at",
        "request",
        "root",
        "running",
        "seated",
        "sequences",
        "stepping",
        "stop",
        "width",
    )

    def __init__(
        self,
        request: Request,
        number: int,
        now: float,
        scope: tuple[str, ...],
        names: list[bytes] | None = None,
    ) -> None:
        """`names` are those of the prompt's full blocks, where they are known."""
        sampling = request.sampling
        self.request = msgspec.structs.replace(request, prompt=[])
        self.prompt_len = len(request.prompt)
        self.id = request.id
        self.number = number  # order of arrival
        self.priority = request.priority
        self.arrived = self.queued_at = now  # the latter anew with each preemption
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.root = root_hash(*scope)
        self.stop = frozenset(sampling.stop_token_ids)
        self.width = sampling.width
        self.moved = request.resumed is not None  # from another engine
        self.indices = request.live_samples  # to fork
        self.forked = self.width == 1
        self.cached = 0  # prompt tokens found at first admission
        self.preemptions = 0
        self.running = False
        self.seated = 0  # order of its last admission
        self.stepping = False  # candidates of its beams are in flight
        self.generated = 0  # tokens of those that ended
        self.longest = 0  # of them, tokens of the one with the most
        self.finish: Finish | None = None
        self.beams: BeamSearch | None = None
        if sampling.beam_width is not None and sampling.max_tokens:
            self.beams = BeamSearch(
                sampling.beam_width,
                sampling.max_tokens,
                sampling.length_penalty,
                sampling.early_stopping,
                self.stop,
            )
        self.sequences = [Sequence(self, 0, request.prompt)]
        if names is not None:
            self.sequences[0].chain = names
        if request.resumed:
            self.forked = True
            self.sequences = [
                Sequence(self, index, request.prompt, request.resumed[index])
                for index in self.indices
            ]
        # The one sequence of a request that never has another, until it ends: most are such.
        self.only = self.sequences[0] if self.width == 1 else None
        # Whether each of its steps brings a token and nothing else, once its prompt is computed.
        self.plain = self.width == 1 and self.beams is None and sampling.logprobs is None

    def rows(self) -> int:
        """Rows that it takes, or may yet take when it forks."""
        if self.beams is not None:
            return self.width
        return len(self.sequences if self.forked else self.indices)

    def ready(self) -> list[Sequence]:
        """Those that lack only their last token and wait for no sibling. Beams take each step
        together: all of them, or none."""
        only = self.only
        if only is not None:
            return [only] if only.remaining() == 1 else []
        ready = [seq for seq in self.sequences if seq.remaining() == 1 and not seq.is_held()]
        together = self.beams is not None and len(ready) < len(self.sequences)
        return [] if together else ready

    def unfork(self) -> None:
        """Samples none of which got its first token are one sequence again."""
        assert not self.running and not any(seq.generated for seq in self.sequences)
        self.indices = [seq.index for seq in self.sequences]
        del self.sequences[1:]
        self.forked = False

    def awaits_result(self) -> bool:
        """Whether its tokens are not all known: it cannot be admitted again before they are."""
        return self.stepping or any(seq.pending for seq in self.sequences)
