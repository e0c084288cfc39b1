"""The scheduler's settings and the runtime facts that it is told, kept apart."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from octavo.scheduler.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of one engine. Token counts unless said otherwise; watermarks are shares of the
    usable blocks. Raises `InvalidRequest` naming the flag that is wrong."""

    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    watermark_low: float = 0.04
    watermark_high: float = 0.08
    max_num_queued_reqs: int = 1024

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise InvalidRequest(
                "block_size", f"block_size must be a power of two, got {self.block_size}"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.watermark_low <= self.watermark_high < 1:
            raise InvalidRequest(
                "watermark_low",
                "watermarks must satisfy 0 <= low <= high < 1, "
                f"got {self.watermark_low} and {self.watermark_high}",
            )


class Capacity(msgspec.Struct, frozen=True, array_like=True):
    """What the workers found room for: `num_blocks` counts the null block 0 too."""

    num_blocks: int
    block_size: int

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def tokens(self) -> int:
        return self.usable_blocks * self.block_size
