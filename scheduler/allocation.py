"""How much memory a request reserves at admission: nothing, or what systems before paging did.

The PagedAttention paper (Kwon et al. 2023, section 6.1) compares with three ways in which Orca may
have reserved contiguous memory. They run here inside the same engine, for an honest comparison.
"""

from __future__ import annotations

from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.sequence import Sequence


class Reservation:
    """`max` reserves the longest sequence that the model takes; `pow2` the prompt and the answer's
    true length rounded up to a power of two; `oracle` exactly what will be used."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.active = config.allocation != "paged"

    def blocks(self, seq: Sequence) -> int:
        """Blocks that a sequence holds from its admission to its end."""
        return -(-self.tokens(seq) // self._config.block_size)

    def tokens(self, seq: Sequence) -> int:
        longest = self._config.max_model_len
        match self._config.allocation:
            case "max":
                return longest
            case "pow2":
                answer = max(1, seq.limit - seq.prompt_len)
                return min(longest, seq.prompt_len + (1 << (answer - 1).bit_length()))
            case "oracle":
                return seq.limit
            case "paged":
                return len(seq.tokens)
