"""How many blocks a rank has room for, and the tensor that holds them.

Sizing speaks in a `Budget`, whose lines say where the bytes go, so that a pool that is too small is
explained by its own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from octavo.kernels.base import block_bytes, cache_shape
from octavo.kernels.memory import mapped_zeros, write_pages_soon
from octavo.scheduler.errors import InvalidRequest
from octavo.workers.model_config import ModelConfig
from octavo.workers.parallel import Shard

CPU_SHARE = 0.4  # of the memory that is free once the weights are loaded
WRITTEN_SOON = 0.25  # of a CPU's cache
CPU_CAP = 4 * 2**30  # bytes for all ranks of an engine; more is had by asking
CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Layout:
    """The cache of one rank: its shape but for the number of blocks."""

    num_layers: int
    kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: ModelConfig, shard: Shard, block_size: int, dtype: torch.dtype) -> Layout:
        return cls(model.num_layers, len(shard.kv_heads), block_size, model.head_dim, dtype)

    @property
    def block_bytes(self) -> int:
        return block_bytes(
            self.num_layers, self.kv_heads, self.block_size, self.head_dim, self.dtype
        )

    def allocate(self, num_blocks: int, device: torch.device, lasting: bool = False) -> Tensor:
        """All zeros: kernels may read, and weigh by nothing, the unused end of a block. On a CPU
        the system gives each page when it is first written, but for the first ones of a `lasting`
        cache: an idle engine stays small, and its first steps wait for no pages."""
        shape = cache_shape(
            num_blocks, self.num_layers, self.kv_heads, self.block_size, self.head_dim
        )
        if device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=device)
        memory = mapped_zeros(num_blocks * self.block_bytes)
        if lasting:
            write_pages_soon(memory, int(len(memory) * WRITTEN_SOON))
        return memory.view(self.dtype).view(shape)


@dataclass(frozen=True, slots=True)
class Budget:
    """`cache_bytes` may be spent on blocks by this rank. `lines` are (what, bytes), for people, and
    `remedy` is how there would be more, where --kv-cache-memory-bytes is not the way."""

    cache_bytes: int
    lines: tuple[tuple[str, int], ...]
    remedy: str = "give more memory with --kv-cache-memory-bytes"

    def num_blocks(self, layout: Layout, max_model_len: int) -> int:
        """Blocks that fit, the null block included. Raises `InvalidRequest` where not even one
        request of `max_model_len` tokens would."""
        found = self.cache_bytes // layout.block_bytes
        needed = -(-max_model_len // layout.block_size) + 1
        if found < needed:
            headline = f"the KV cache has no room for one request of {max_model_len} tokens"
            text = self.explained(headline, layout, max_model_len)
            raise InvalidRequest("kv_cache_memory_bytes", text)
        return found

    def fitting(self, layout: Layout) -> int:
        """The longest request in tokens that fits."""
        return max(0, self.cache_bytes // layout.block_bytes - 1) * layout.block_size

    def explained(self, headline: str, layout: Layout, max_model_len: int) -> str:
        """The headline, where the bytes go, the largest length that fits, and the remedy."""
        fitting = self.fitting(layout)
        needed = (-(-max_model_len // layout.block_size) + 1) * layout.block_bytes
        lines = [
            f"{headline}:",
            *(f"  {name:<44}{amount(size):>12}" for name, size in self.lines),
            f"  {'left for the KV cache':<44}{amount(self.cache_bytes):>12}",
            f"  {f'needed for {max_model_len} tokens':<44}{amount(needed):>12}",
            f"the largest length that fits is {fitting} tokens: ",
        ]
        if fitting:
            lines[-1] += f"set --max-model-len {fitting} or less, or "
        lines[-1] += self.remedy
        return "\n".join(lines)


def given_budget(cache_bytes: int) -> Budget:
    """The user named the bytes for each rank."""
    return Budget(cache_bytes, (("--kv-cache-memory-bytes, each rank", cache_bytes),))


def cpu_budget(available: int, ranks: int) -> Budget:
    """A share of `available` bytes, divided by the ranks that are taken to be on this machine."""
    share = int(available * CPU_SHARE)
    total = min(share, CPU_CAP)
    lines = [("free memory after loading the weights", available)]
    lines.append((f"share for the KV cache ({CPU_SHARE:.0%})", share))
    if total < share:
        lines.append(("most that is taken unasked", CPU_CAP))
    if ranks > 1:
        lines.append((f"each of {ranks} ranks", total // ranks))
    return Budget(total // ranks, tuple(lines))


def available_memory() -> int:
    """Bytes this process may still take: what the machine has free, or less in a container."""
    machine = int(psutil.virtual_memory().available)
    container = container_memory()
    return machine if container is None else min(machine, container)


def container_memory(cgroup: Path = CGROUP) -> int | None:
    """Bytes left below the limit of the control group, version 2 or 1; None where there is none."""
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = int((cgroup / limit_file).read_text())
            usage = int((cgroup / usage_file).read_text())
        except (OSError, ValueError):  # not there, or the word "max"
            continue
        return max(0, limit - usage)
    return None


def amount(size: int) -> str:
    """Bytes, for people."""
    return f"{size / GIB:.2f} GiB" if abs(size) >= GIB // 10 else f"{size / 2**20:.2f} MiB"
