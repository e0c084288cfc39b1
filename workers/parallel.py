"""The ranks of one model: what they say to each other, and how a model is divided among them.

Collectives go over `torch.distributed`: gloo between CPUs, NCCL between GPUs. A group of one rank
does nothing, so that the model needs no second path.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from octavo.scheduler.errors import EngineDead
from octavo.workers.degree import check_degree
from octavo.workers.model_config import ModelConfig


class Exchange:
    """How long a rank has been in its collectives, in seconds. A GPU's are only begun from here, so
    they do not count."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def passed(self, tensor: Tensor, began: float) -> None:
        if tensor.device.type == "cpu":
            self.seconds += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Group:
    """Rank `rank` of `size` ranks. Every call must be made by all ranks, in the same order; a dead
    peer makes it raise `RuntimeError`, at the latest after the group's timeout."""

    rank: int = 0
    size: int = 1
    exchange: Exchange = field(default_factory=Exchange, compare=False)

    @classmethod
    def join(
        cls, init_method: str, rank: int, size: int, device: str, timeout_seconds: float = 60.0
    ) -> Group:
        """Meets the other ranks at `init_method`, such as `tcp://10.0.0.5:29500`. `device` is cpu
        or cuda, whose first visible GPU is this rank's. One group a process; `close` ends it.
        Raises `EngineDead` where there is no GPU."""
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineDead(
                "torch finds no GPU there; see that the node's driver works, and that its torch is "
                "built for CUDA"
            )
        group = cls(rank, size)
        if size > 1:
            gpu = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else None
            dist.init_process_group(
                "gloo" if gpu is None else "nccl",
                init_method=init_method,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_seconds),
                device_id=gpu,
            )
            if gpu is not None:
                # NCCL connects the ranks at the first collective: better here, where it is said
                # which rank failed, than in the first step.
                group.all_reduce(torch.ones(1, device=gpu))
                torch.cuda.synchronize(gpu)
        return group

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums in place over all ranks; every rank gets the same bits."""
        if self.size > 1:
            began = time.perf_counter()
            dist.all_reduce(tensor)
            self.exchange.passed(tensor, began)

    def gather_columns(self, part: Tensor) -> Tensor | None:
        """Rank 0 gets `[rows, size * columns]` of all ranks' `[rows, columns]`, others None."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        began = time.perf_counter()
        dist.gather(part.contiguous(), parts)
        self.exchange.passed(part, began)
        return None if parts is None else torch.cat(parts, dim=-1)

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites `tensor` with rank 0's."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)


ALONE = Group()


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds of a model, as half-open ranges of whole heads and rows.

    Where there are fewer KV heads than ranks, neighbouring ranks hold the same one. The vocabulary
    is padded to `size * vocab_rows`; the last ranks may have fewer real rows, or none.
    """

    rank: int
    size: int
    heads: range
    kv_heads: range
    intermediate: range
    vocab: range
    vocab_rows: int

    @classmethod
    def of(cls, model: ModelConfig, rank: int, size: int) -> Shard:
        """Raises `InvalidRequest` where `size` does not divide the model."""
        check_degree(model, size)
        kv_heads = max(1, model.num_kv_heads // size)
        copies = max(1, size // model.num_kv_heads)
        rows = -(-model.vocab_size // size)
        first = min(rank * rows, model.vocab_size)
        return cls(
            rank=rank,
            size=size,
            heads=_share(model.num_heads // size, rank),
            kv_heads=_share(kv_heads, rank // copies),
            intermediate=_share(model.intermediate_size // size, rank),
            vocab=range(first, min(first + rows, model.vocab_size)),
            vocab_rows=rows,
        )


def _share(count: int, index: int) -> range:
    return range(index * count, (index + 1) * count)
