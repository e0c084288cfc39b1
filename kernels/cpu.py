"""The native CPU kernels: a thin, quick call into the library that `build.py` makes.

Knows the C interface (`csrc/octavo.h`) and the shapes it takes; the arithmetic is in `csrc/`.
A decode step makes several calls a layer, so a batch's pointers are gathered and checked once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from octavo.kernels.arguments import (
    STORAGE,
    as_array,
    as_layer,
    as_matrix,
    as_rows,
    as_tokens,
    shapes_of,
    storage_of,
)
from octavo.kernels.base import Batch, Packed
from octavo.kernels.packing import (
    Arena,
    fits_gate,
    fits_panels,
    linear_plain,
    pack_panels,
    pack_plain,
)
from octavo.kernels.quantized import quantize_panels, quantize_plain
from octavo.kernels.signatures import PLAYED, SIGNATURES, BatchArrays
from octavo.kernels.tape import NativeTape

INDICES = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "slots")
BATCH_FAULTS = {
    1: "a slot lies outside of the cache",
    2: "a block lies outside of the cache",
    3: "index pointers and lengths contradict each other",
}


def has_tiles(library: Path) -> bool:
    """Whether the matrix products of `library` use this machine's AMX. Raises OSError as loading it
    does."""
    return bool(ctypes.CDLL(str(library)).octavo_has_tiles())


class CpuKernels:
    """float32 and bfloat16 on any CPU. Keys lie transposed in the cache: see `csrc/cell.h`.

    Tensors of `[num_tokens, heads, head_dim]` may be slices of a wider matrix, as the parts of a
    fused qkv product are. Raises TypeError for another dtype, ValueError for a layout that the
    kernels cannot read, IndexError for a batch that points outside of the cache.
    """

    name = "native"

    def __init__(
        self, library: Path, torch_above: Mapping[torch.dtype, int] = MappingProxyType({})
    ) -> None:
        """Loads `library`; raises OSError if it is not one for this machine. Matrix products of
        more rows than `torch_above` has for their dtype are left to torch."""
        self.library = library
        self._library = ctypes.CDLL(str(library))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._attention = self._library.octavo_attention
        self._write_kv = self._library.octavo_write_kv
        self._rotary_write_kv = self._library.octavo_rotary_write_kv
        self._rms_norm = self._library.octavo_rms_norm
        self._add_rms_norm = self._library.octavo_add_rms_norm
        self._linear = self._library.octavo_linear
        self._silu_and_mul = self._library.octavo_silu_and_mul
        self._left_to_torch = False
        self._torch_above = torch_above
        self._arena = Arena()
        self._batch: Batch | None = None
        self._num_blocks = 0
        self._arrays = BatchArrays()
        self._address = ctypes.addressof(self._arrays)

    def begin_step(self, batch: Batch) -> None:
        """Nothing: a new batch is prepared at the first call that it comes with."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, batch: Batch) -> None:
        layer = as_layer(cache)
        shape = batch.slots.shape[0], *layer[2:]
        self._write_kv(
            storage_of(cache, key, value),
            self._prepared(batch, cache),
            *layer,
            *as_tokens(key, shape),
            *as_tokens(value, shape),
            torch.get_num_threads(),
        )

    def rotary_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        cache: Tensor,
        batch: Batch,
    ) -> None:
        layer = as_layer(cache)
        *_, kv_heads, head_dim = layer
        tokens, heads, max_len = batch.slots.shape[0], query.shape[1], cos_sin.shape[0]
        if cos_sin.shape[1:] != (2, head_dim // 2) or positions.shape[0] != tokens:
            raise ValueError(f"shapes {shapes_of(query, cos_sin, positions)} do not fit together")
        outside = self._rotary_write_kv(
            storage_of(cache, query, key, value),
            self._prepared(batch, cache),
            *layer,
            *as_tokens(query, (tokens, heads, head_dim)),
            heads,
            *as_tokens(key, (tokens, kv_heads, head_dim)),
            *as_tokens(value, (tokens, kv_heads, head_dim)),
            as_array(cos_sin, torch.float32),
            max_len,
            as_array(positions, torch.int32),
            torch.get_num_threads(),
        )
        if outside:
            raise IndexError(
                f"positions {int(positions.min())} to {int(positions.max())} are not all among "
                f"the {max_len} of the rotary table"
            )

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        address, stride, kv_heads, head_dim = as_layer(cache)
        heads = query.shape[1]
        if heads % kv_heads:
            raise ValueError(f"queries of shape {list(query.shape)} do not fit {kv_heads} KV heads")
        shape = batch.slots.shape[0], heads, head_dim
        self._attention(
            storage_of(cache, query, out),
            self._prepared(batch, cache),
            address,
            stride,
            kv_heads,
            head_dim,
            *as_tokens(query, shape),
            *as_tokens(out, shape),
            heads,
            scale,
            window or 0,
            torch.get_num_threads(),
        )

    def copy_blocks(self, cache: Tensor, pairs: Tensor) -> None:
        count = pairs.shape[0]
        if count == 0:
            return
        if not cache.is_contiguous():
            raise ValueError(f"whole blocks must be contiguous, not of strides {cache.stride()}")
        least, most = torch.aminmax(pairs)
        if int(least) < 0 or int(most) >= cache.shape[0]:
            raise IndexError(f"{BATCH_FAULTS[2]}: {pairs.tolist()} of {cache.shape[0]} blocks")
        self._library.octavo_copy_blocks(
            cache.data_ptr(),
            cache[0].nbytes,
            as_array(pairs, torch.int64),
            count,
            torch.get_num_threads(),
        )

    def gather_blocks(self, cache: Tensor, blocks: Tensor, out: Tensor) -> None:
        torch.index_select(cache, 0, blocks, out=out)

    def scatter_blocks(self, staged: Tensor, blocks: Tensor, cache: Tensor) -> None:
        cache.index_copy_(0, blocks, staged)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        tokens, heads, token_stride, head_stride = as_rows(x)
        *_, out_token_stride, out_head_stride = as_rows(out)
        width = x.shape[-1]
        if x.shape != out.shape or weight.shape[0] != width:
            raise ValueError(f"shapes {shapes_of(x, weight, out)} do not fit together")
        self._rms_norm(
            storage_of(x, weight, out),
            x.data_ptr(),
            token_stride,
            head_stride,
            tokens,
            heads,
            width,
            weight.data_ptr(),
            eps,
            out.data_ptr(),
            out_token_stride,
            out_head_stride,
            torch.get_num_threads(),
        )

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        rows, width = x.shape
        if x.shape != residual.shape or x.shape != out.shape or weight.shape[0] != width:
            raise ValueError(f"shapes {shapes_of(x, residual, weight, out)} do not fit together")
        self._add_rms_norm(
            storage_of(x, residual, weight, out),
            *as_matrix(x),
            *as_matrix(residual),
            rows,
            width,
            weight.data_ptr(),
            eps,
            *as_matrix(out),
            torch.get_num_threads(),
        )

    def pack(self, weight: Tensor, gated: bool = False) -> Packed:
        """Into panels, where a row of `weight` is whole words of 4 bytes. `weight` itself is kept
        only where products of many rows are left to torch."""
        most = self._torch_above.get(weight.dtype)
        if weight.dtype not in STORAGE or most == 0 or not fits_panels(weight):
            return pack_plain(weight)
        gated = gated and most is None and fits_gate(weight)
        return pack_panels(weight, self._arena, most is not None, gated)

    def quantize(self, weight: Tensor, gated: bool = False, form: str = "int8") -> Packed:
        """Into panels, which serve any number of rows: torch has no such product."""
        if weight.dtype not in STORAGE or form != "int8":
            return quantize_plain(weight, form)
        return quantize_panels(weight, self._arena, gated and fits_gate(weight))

    def linear(self, x: Tensor, weight: Packed, bias: Tensor | None, out: Tensor) -> None:
        if weight.gated:
            raise ValueError("the weight was packed for gated_linear")
        self._multiply(x, weight, bias, out, weight.outputs)

    def gated_linear(
        self, x: Tensor, weight: Packed, bias: Tensor | None, gate_up: Tensor, out: Tensor
    ) -> None:
        if weight.gated:
            return self._multiply(x, weight, bias, out, weight.outputs // 2)
        self.linear(x, weight, bias, gate_up)
        self.silu_and_mul(gate_up, out)

    def feed_forward(
        self,
        x: Tensor,
        gate_up: Packed,
        gate_up_bias: Tensor | None,
        down: Packed,
        down_bias: Tensor | None,
        wide: Tensor,
        gated: Tensor,
        out: Tensor,
    ) -> None:
        """Between its products, rows lie as the second one reads them best."""
        if not gate_up.gated or not gated.is_contiguous() or not self._panels(down, len(x)):
            self.gated_linear(x, gate_up, gate_up_bias, wide, gated)
            return self.linear(gated, down, down_bias, out)
        self._multiply(x, gate_up, gate_up_bias, gated, gate_up.outputs // 2, out_own=True)
        self._multiply(gated, down, down_bias, out, down.outputs, x_own=True)

    def _panels(self, weight: Packed, rows: int) -> int:
        """Their address, or 0 where the product of so many rows is left to torch."""
        if weight.panels is None:
            return 0
        if weight.plain is not None and rows > self._torch_above[weight.dtype]:
            return 0
        return weight.panels.data_ptr()

    def _multiply(
        self,
        x: Tensor,
        weight: Packed,
        bias: Tensor | None,
        out: Tensor,
        results: int,
        x_own: bool = False,
        out_own: bool = False,
    ) -> None:
        """Into `results` numbers a row. What is `own` has its rows in an order of the library's."""
        rows = x.shape[0]
        panels = self._panels(weight, rows)
        if not panels:
            self._left_to_torch = True
            return linear_plain(x, weight, bias, out)
        if x.shape[1] != weight.inputs or out.shape != (rows, results):
            raise ValueError(f"{shapes_of(x, out)} do not fit {weight.outputs, weight.inputs}")
        if bias is not None and (bias.shape[0] != weight.outputs or bias.dtype is not x.dtype):
            raise ValueError(f"a bias of {bias.dtype} {list(bias.shape)} does not fit the weight")
        address, stride = as_matrix(x)
        if stride % 4 and weight.scales is None:
            raise ValueError(f"rows must be whole words apart, not {stride} bytes")
        if x.dtype is not weight.dtype:
            raise TypeError(f"dtypes differ: {[x.dtype, weight.dtype]}")
        self._linear(
            storage_of(x, out),
            address,
            stride,
            rows,
            weight.inputs,
            panels,
            weight.outputs,
            None if bias is None else as_array(bias, x.dtype),
            None if weight.scales is None else weight.scales.data_ptr(),
            weight.gated,
            x_own,
            out_own,
            *as_matrix(out),
            torch.get_num_threads(),
        )

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        rows, width = out.shape
        if gate_up.shape != (rows, 2 * width):
            raise ValueError(f"shapes {shapes_of(gate_up, out)} do not fit together")
        self._silu_and_mul(
            storage_of(gate_up, out),
            *as_matrix(gate_up),
            *as_matrix(out),
            rows,
            width,
            torch.get_num_threads(),
        )

    def argmax(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, width = x.shape
        if width == 0:
            raise ValueError("rows without numbers have no largest one")
        indices, values = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        self._library.octavo_argmax(
            storage_of(x),
            *as_matrix(x),
            rows,
            width,
            indices.data_ptr(),
            values.data_ptr(),
            torch.get_num_threads(),
        )
        return indices, values

    def record(self, calls: Callable[[], None]) -> NativeTape | None:
        tape = NativeTape(self._library, self._prepared)
        functions = {name: getattr(self, name) for name in PLAYED}
        self._left_to_torch = False
        try:
            for name, function in functions.items():
                setattr(self, name, tape.listen(function))
            calls()
        finally:
            vars(self).update(functions)
        tape.close()
        return None if self._left_to_torch else tape

    def _prepared(self, batch: Batch, cache: Tensor) -> int:
        """The address of `batch`'s pointers; gathered and checked when the batch is a new one."""
        num_blocks, _, _, block_size, _ = cache.shape
        if batch.block_size != block_size:
            raise ValueError(
                f"the batch's blocks hold {batch.block_size} tokens, the cache's {block_size}"
            )
        if batch is self._batch and num_blocks == self._num_blocks:
            return self._address
        self._batch = None
        arrays = self._arrays
        for name in INDICES:
            setattr(arrays, name, as_array(getattr(batch, name), torch.int32))
        rows = batch.kv_last_page_len.shape[0]
        if batch.qo_indptr.shape[0] != rows + 1 or batch.kv_indptr.shape[0] != rows + 1:
            raise ValueError(f"index pointers for {rows} rows need {rows + 1} entries")
        arrays.num_rows = rows
        arrays.num_tokens = batch.slots.shape[0]
        arrays.num_indices = batch.kv_indices.shape[0]
        arrays.block_size = block_size
        if fault := self._library.octavo_check(self._address, num_blocks):
            raise IndexError(f"{BATCH_FAULTS[fault]} of {num_blocks} blocks")
        self._batch, self._num_blocks = batch, num_blocks
        return self._address
