"""The scheduler's settings and the runtime facts that it is told, kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from octavo.scheduler.errors import InvalidRequest

PreemptionMode = Literal["auto", "recompute", "swap"]
Allocation = Literal["paged", "max", "pow2", "oracle"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of one engine. Token counts unless said otherwise; watermarks are shares of the
    usable blocks. An `allocation` other than paged reserves memory at admission and shares none, as
    the Orca variants of the PagedAttention paper (Kwon et al. 2023, section 6.1) do.
    Raises `InvalidRequest` naming the flag that is wrong."""

    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    watermark_low: float = 0.04
    watermark_high: float = 0.08
    max_num_queued_reqs: int = 1024
    preemption_mode: PreemptionMode = "auto"
    allocation: Allocation = "paged"
    write_behind_blocks: int = 8  # a step, four times as many below the low watermark
    write_behind_below: float = 0.25  # the share of blocks that hold nothing: above, none is
    revision: str = ""  # of the model: equal content has equal names only under equal weights
    adapters: tuple[str, ...] = ()  # that requests may name
    max_loras: int | None = None  # of them in one step; None for all

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise InvalidRequest(
                "block_size", f"block_size must be a power of two, got {self.block_size}"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, f"{name} must be positive, got {getattr(self, name)}")
        if self.max_loras is not None and self.max_loras < 1:
            raise InvalidRequest("max_loras", f"max_loras must be positive, got {self.max_loras}")
        for name, choices in (("preemption_mode", PreemptionMode), ("allocation", Allocation)):
            if getattr(self, name) not in get_args(choices):
                raise InvalidRequest(
                    name,
                    f"{name} must be one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, name)!r}",
                )
        if not 0 <= self.watermark_low <= self.watermark_high < 1:
            raise InvalidRequest(
                "watermark_low",
                "watermarks must satisfy 0 <= low <= high < 1, "
                f"got {self.watermark_low} and {self.watermark_high}",
            )

    def plenty(self, capacity: Capacity) -> int:
        """A number of blocks that hold nothing: while there are as many, nothing is written behind,
        since they are taken before anything is lost."""
        return int(capacity.usable_blocks * self.write_behind_below)

    def watermarks(self, capacity: Capacity) -> tuple[int, int]:
        """Numbers of free blocks: below the first nobody is let in, from the second on again."""
        growing = self.allocation == "paged"  # what is reserved whole needs no room to grow
        low = int(capacity.usable_blocks * self.watermark_low) * growing
        return low, int(capacity.usable_blocks * self.watermark_high) * growing


class Capacity(msgspec.Struct, frozen=True, array_like=True):
    """What the workers found room for: `num_blocks` counts the null block 0 too, the host tier has
    none. `block_bytes` is one block's size on one rank."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    block_bytes: int = 0

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def tokens(self) -> int:
        return self.usable_blocks * self.block_size
