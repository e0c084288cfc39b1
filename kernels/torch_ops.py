"""Plain torch at a useful speed, for machines without a compiler.

Cells are laid out as the reference's. Each row is one call of torch's fused attention, so rows
don't depend on each other; gathering their blocks costs most of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.kernels.base import Batch
from octavo.kernels.reference import ReferenceKernels


class TorchKernels(ReferenceKernels):
    """The reference with a faster attention."""

    name = "torch"

    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        batch: Batch,
        scale: float,
        out: Tensor,
        window: int | None = None,
    ) -> None:
        grouped = query.shape[1] != cache.shape[2]
        qo, kv = batch.qo_indptr.tolist(), batch.kv_indptr.tolist()
        for row, last in enumerate(batch.kv_last_page_len.tolist()):
            queries = qo[row + 1] - qo[row]
            if queries == 0:
                continue
            blocks = batch.kv_indices[kv[row] : kv[row + 1]]
            length = (len(blocks) - 1) * batch.block_size + last
            # [blocks, 2, heads, block_size, dim] -> [2, heads, length, dim]
            gathered = cache.index_select(0, blocks).permute(1, 2, 0, 3, 4).flatten(2, 3)
            gathered = gathered.to(query.dtype)
            key, value = gathered[:, None, :, :length].unbind(0)
            mask = None
            if 1 < queries < length or (window is not None and window < length):
                mask = torch.ones(queries, length, dtype=torch.bool, device=query.device)
                mask = mask.tril(length - queries)
                if window is not None:
                    mask = mask.triu(length - queries - window + 1)
            result = scaled_dot_product_attention(
                query[qo[row] : qo[row + 1]].transpose(0, 1)[None],
                key,
                value,
                attn_mask=mask,
                is_causal=mask is None and queries > 1,
                scale=scale,
                enable_gqa=grouped,
            )
            out[qo[row] : qo[row + 1]] = result[0].transpose(0, 1)
