"""FlashInfer's attention: its wrappers, planned once a step for all layers.

A plan is made on the CPU, from the batch's arrays there, and says what each part of a GPU computes.
Plans are no part of a graph, but what they write is read by one: a graph of a step has a wrapper of
its own, whose buffers are the tensors of its batch, and is planned anew before each replay.

A graph has no cascade: its kernels are those that it was recorded with, and a step of it may have a
prefix that all rows share, or none. FlashInfer's wrappers could be recorded with one, in buffers of
their own, as a second graph for each size: twice the start and twice the graphs, for the steps that
share. Whether that pays is what the part `attention` of scripts/gpu_check.sh measures. Until it is
known, what shares is read once a step where a step is not played: if it has a chunk of a prompt,
more rows than the largest graph, or with --enforce-eager.

FlashInfer copies a plan to the GPU from a buffer that the next plan overwrites, and does not wait.
So `Planner` waits for the copies of the plan before, which are done where at most one step is
planned ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.kernels.base import Batch
from octavo.kernels.cuda.division import Division, Part, divide
from octavo.kernels.quantized import FP8

LAYOUT = "HND"
BACKEND = "fa2"  # takes blocks of any size, and any strides between them
WORKSPACE = 256 * 2**20  # bytes of partial results; the wrappers share them, as they take turns
GRAPH_PLAN = 4 * 2**20  # bytes of one graph's plan, which is of few rows
DTYPES = (torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128, 256)
TENSOR_CORE_GROUP = 4  # queries of a KV head from which a matrix product pays for one token


@dataclass(frozen=True, slots=True)
class Shape:
    """What a plan depends on beside the batch. Layers of one model are alike."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    scale: float

    @classmethod
    def of(cls, query: Tensor, cache: Tensor, scale: float) -> Shape:
        return cls(query.shape[1], cache.shape[2], query.shape[2], query.dtype, cache.dtype, scale)

    @property
    def supported(self) -> bool:
        """Whether FlashInfer has kernels for it."""
        kept = self.cache_dtype in (self.dtype, FP8)
        return kept and self.dtype in DTYPES and self.head_dim in HEAD_DIMS

    @property
    def on_tensor_cores(self) -> bool:
        """Whether rows of one query go through matrix products."""
        grouped = self.heads // self.kv_heads >= TENSOR_CORE_GROUP
        return grouped or self.cache_dtype is not self.dtype


@dataclass(frozen=True, slots=True)
class _Planned:
    """The wrapper that was planned for the queries `start` to `end`."""

    start: int
    end: int
    wrapper: Any


class Planner:
    """`flashinfer` is the package. The shape is learnt when a layer is first attended; from then on
    a batch is planned by `begin`, and only where that was left out by its first layer."""

    def __init__(self, flashinfer: Any, device: torch.device) -> None:
        self._flashinfer = flashinfer
        self._device = device
        self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
        self._prefill: dict[bool, Any] = {}  # by whether it is causal
        self._decode: Any = None
        self._of_graphs: dict[tuple[int, int, bool], Any] = {}
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._shape: Shape | None = None
        self._batch: Batch | None = None
        self._shared: _Planned | None = None
        self._parts: list[_Planned] = []

    def try_out(self, shape: Shape, block_size: int) -> None:
        """Attends for every kind of part once, over blocks of zeros. FlashInfer compiles or loads
        here what it will need for the shape, which may take minutes, and raises if it cannot:
        before anything depends on it, and not in the midst of serving."""
        own = -(-2 // block_size)  # blocks of two tokens behind a shared one
        arrays = ([0, 1, 3], [0, 2, 3 + own], [0, 1, 0, *range(2, 2 + own)],
                  [1, 2 - (own - 1) * block_size], [0, 0, 0])  # fmt: skip
        host = _batch((torch.tensor(x, dtype=torch.int32) for x in arrays), block_size)
        on_device = _batch((self._carried(x) for x in _arrays(host)), block_size, host)
        cells = 2 + own, 2, shape.kv_heads, block_size, shape.head_dim
        cache = torch.zeros(cells, dtype=shape.cache_dtype, device=self._device)
        query = torch.zeros(3, shape.heads, shape.head_dim, dtype=shape.dtype, device=self._device)
        self._batch = None
        self._plan_parts(on_device, divide(host, 1, 1), shape)
        self._run(query, cache, torch.empty_like(query))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def begin(self, batch: Batch) -> None:
        """Plans for the layers of a pass, as far as it is known what they will ask for."""
        if self._shape is not None and batch is not self._batch:
            self._plan(batch, self._shape)

    def attend(self, query: Tensor, cache: Tensor, batch: Batch, scale: float, out: Tensor) -> None:
        """`Kernels.attention` of a supported shape. Raises ValueError for an `out` that has gaps,
        RuntimeError for a batch that a graph would be captured with and that was not begun."""
        if not out.is_contiguous():
            raise ValueError(f"results must be contiguous, not of strides {out.stride()}")
        shape = Shape.of(query, cache, scale)
        if shape != self._shape or batch is not self._batch:
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a batch must be begun, and planned, before a graph is captured")
            self._plan(batch, shape)
        self._run(query, cache, out)

    def _run(self, query: Tensor, cache: Tensor, out: Tensor) -> None:
        if self._shared is None:
            for part in self._parts:
                mine = slice(part.start, part.end)
                part.wrapper.run(query[mine], cache, out=out[mine])
            return
        prefix, prefix_mass = self._shared.wrapper.run(query, cache, return_lse=True)
        for part in self._parts:
            mine = slice(part.start, part.end)
            _, mass = part.wrapper.run(query[mine], cache, out=out[mine], return_lse=True)
            self._flashinfer.merge_state_in_place(out[mine], mass, prefix[mine], prefix_mass[mine])

    def _plan(self, batch: Batch, shape: Shape) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self._batch = None
        if batch.static:
            self._shared, self._parts = None, [self._plan_graph(batch, shape)]
        else:
            self._plan_parts(batch, divide(_on_cpu(batch)), shape)
        if self._copied is not None:
            self._copied.record()
        self._batch, self._shape = batch, shape

    def _plan_parts(self, batch: Batch, division: Division, shape: Shape) -> None:
        shared, singles, pieces = division.shared, division.singles, division.pieces
        size = batch.block_size
        on_device = batch.kv_indices  # of both parts, one after the other
        if shared is not None:
            on_device = self._carried(torch.cat([p.kv_indices for p in (singles, pieces) if p]))
            indices = self._carried(shared.kv_indices)
            self._shared = self._plan_pieces(shared, indices, shape, size, causal=False)
        else:
            self._shared = None
        self._parts, at = [], 0
        if singles is not None:
            at = len(singles.kv_indices)
            self._parts.append(self._plan_singles(singles, on_device[:at], shape, size))
        if pieces is not None:
            indices = on_device[at : at + len(pieces.kv_indices)]
            self._parts.append(self._plan_pieces(pieces, indices, shape, size, causal=True))

    def _plan_pieces(
        self, part: Part, indices: Tensor, shape: Shape, block_size: int, causal: bool
    ) -> _Planned:
        wrapper = self._prefill.get(causal)
        if wrapper is None:
            wrapper = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, LAYOUT, backend=BACKEND
            )
            self._prefill[causal] = wrapper
        wrapper.plan(
            part.qo_indptr,
            part.kv_indptr,
            indices,
            part.kv_last_page_len,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            block_size,
            causal=causal,
            sm_scale=shape.scale,
            q_data_type=shape.dtype,
            kv_data_type=shape.cache_dtype,
        )
        return _Planned(part.start, part.end, wrapper)

    def _plan_singles(self, part: Part, indices: Tensor, shape: Shape, block_size: int) -> _Planned:
        if self._decode is None or self._decode.use_tensor_cores != shape.on_tensor_cores:
            self._decode = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                LAYOUT,
                use_tensor_cores=shape.on_tensor_cores,
                backend=BACKEND,
            )
        _plan_decode(self._decode, part, indices, shape, block_size)
        return _Planned(part.start, part.end, self._decode)

    def _plan_graph(self, batch: Batch, shape: Shape) -> _Planned:
        rows = len(batch.kv_last_page_len)
        key = batch.kv_indptr.data_ptr(), rows, shape.on_tensor_cores
        wrapper = self._of_graphs.get(key)
        if wrapper is None:
            wrapper = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                LAYOUT,
                use_cuda_graph=True,
                use_tensor_cores=shape.on_tensor_cores,
                paged_kv_indptr_buffer=batch.kv_indptr,
                paged_kv_indices_buffer=batch.kv_indices,
                paged_kv_last_page_len_buffer=batch.kv_last_page_len,
                backend=BACKEND,
            )
            wrapper.reset_workspace_buffer(
                self._workspace,
                torch.empty(GRAPH_PLAN, dtype=torch.uint8, device=self._device),
            )
            self._of_graphs[key] = wrapper
        host = _on_cpu(batch)
        count = int(host.kv_indptr[-1])
        part = Part(0, rows, host.qo_indptr, host.kv_indptr, host.kv_indices,
                    host.kv_last_page_len)  # fmt: skip
        _plan_decode(wrapper, part, batch.kv_indices[:count], shape, batch.block_size)
        return _Planned(0, rows, wrapper)

    def _carried(self, indices: Tensor) -> Tensor:
        """On the device, without waiting for what it does now."""
        if self._device.type == "cpu":
            return indices
        return indices.pin_memory().to(self._device, non_blocking=True)


def _plan_decode(wrapper: Any, part: Part, indices: Tensor, shape: Shape, block_size: int) -> None:
    wrapper.plan(
        part.kv_indptr,
        indices,
        part.kv_last_page_len,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        block_size,
        sm_scale=shape.scale,
        q_data_type=shape.dtype,
        kv_data_type=shape.cache_dtype,
    )


def _on_cpu(batch: Batch) -> Batch:
    """Without its `host` it has to be fetched, which waits for the GPU."""
    if batch.host is not None:
        return batch.host
    return _batch((array.cpu() for array in _arrays(batch)), batch.block_size)


def _batch(arrays: Iterable[Tensor], block_size: int, host: Batch | None = None) -> Batch:
    """Of the five arrays in their order."""
    qo_indptr, kv_indptr, kv_indices, last, slots = arrays
    return Batch(qo_indptr, kv_indptr, kv_indices, last, slots, block_size, host)


def _arrays(batch: Batch) -> tuple[Tensor, ...]:
    return (
        *(batch.qo_indptr, batch.kv_indptr, batch.kv_indices),
        *(batch.kv_last_page_len, batch.slots),
    )
