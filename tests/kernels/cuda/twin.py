"""FlashInfer in plain torch, as far as `Planner` calls it: `run` computes what `plan` was told.

Parameters have FlashInfer's names and places; `test_signatures` compares them with its own. Masses
are base-2 logarithms of the sums of weights, as FlashInfer's are.
"""

import math

import torch


class _Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout):
        assert kv_layout == "HND"
        self._workspace = float_workspace_buffer
        self.plans = 0

    def _remember(self, qo_indptr, kv_indptr, indices, last, shape, page_size, causal, scale):
        """The device's arrays are looked at in `run`: those of a graph may change until then."""
        assert qo_indptr[0] == 0 and kv_indptr[0] == 0
        assert all(x.dtype is torch.int32 for x in (qo_indptr, kv_indptr, indices, last))
        assert len(indices) == kv_indptr[-1]
        assert len(qo_indptr) == len(kv_indptr) == len(last) + 1
        self.arrays = [qo_indptr, kv_indptr, indices, last]
        self.shape, self.page_size, self.causal, self.scale = shape, page_size, causal, scale
        self.plans += 1

    def _run(self, q, cache, out, return_lse):
        heads, kv_heads, dim, dtype, cache_dtype = self.shape
        assert q.shape[1:] == (heads, dim) and q.dtype is dtype and cache.dtype is cache_dtype
        assert cache.shape[1:] == (2, kv_heads, self.page_size, dim)
        qo, kv, indices, last = (x.tolist() for x in self.arrays)
        assert len(q) == qo[-1]
        out = torch.empty(q.shape, dtype=dtype) if out is None else out
        assert out.is_contiguous()
        mass = torch.empty(q.shape[:2])
        for row, rest in enumerate(last):
            pages = indices[kv[row] : kv[row + 1]]
            length = (len(pages) - 1) * self.page_size + rest
            mine = slice(qo[row], qo[row + 1])
            out[mine], mass[mine] = _attend(
                q[mine], cache[pages].transpose(1, 2), length, self.causal, self.scale
            )
        return (out, mass) if return_lse else out


def _attend(q, cache, length, causal, scale):
    # [pages, heads, 2, page, dim] -> [2, heads, length, dim]
    k, v = (cache[:, :, i].transpose(0, 1).flatten(1, 2)[:, :length].float() for i in (0, 1))
    group = q.shape[1] // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q.transpose(0, 1).float() @ k.transpose(1, 2) * scale
    if causal:
        places = torch.arange(length - len(q), length)[:, None]
        scores = scores.masked_fill(torch.arange(length) > places, float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(0, 1).to(q.dtype)
    return out, (scores.logsumexp(-1) / math.log(2)).T


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", *, backend="auto"):
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        *,
        causal=False,
        sm_scale=None,
        q_data_type="float16",
        kv_data_type=None,
    ):
        shape = num_qo_heads, num_kv_heads, head_dim_qk, q_data_type, kv_data_type
        self._remember(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
                       shape, page_size, causal, sm_scale)  # fmt: skip

    def run(self, q, paged_kv_cache, *, out=None, return_lse=False):
        return self._run(q, paged_kv_cache, out, return_lse)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        *,
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
    ):
        super().__init__(float_workspace_buffer, kv_layout)
        self.use_tensor_cores = use_tensor_cores
        self.buffers = None
        if use_cuda_graph:
            self.buffers = (
                paged_kv_indptr_buffer,
                paged_kv_indices_buffer,
                paged_kv_last_page_len_buffer,
            )

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        assert float_workspace_buffer is self._workspace
        assert int_workspace_buffer.dtype is torch.uint8

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        sm_scale=None,
        q_data_type="float16",
        kv_data_type=None,
    ):
        shape = num_qo_heads, num_kv_heads, head_dim, q_data_type, kv_data_type
        each = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        self._remember(each, indptr, indices, last_page_len, shape, page_size, False, sm_scale)
        if self.buffers is not None:
            at, places, last = self.buffers
            assert len(last) == len(last_page_len), "a graph has one number of rows"
            at.copy_(indptr)
            places[: len(indices)].copy_(indices)
            last.copy_(last_page_len)
            self.arrays[1:] = self.buffers

    def run(self, q, paged_kv_cache, *, out=None, return_lse=False):
        return self._run(q, paged_kv_cache, out, return_lse)


def merge_state_in_place(v, s, v_other, s_other):
    assert v.is_contiguous() and s.is_contiguous() and v_other.is_contiguous()
    total = torch.logaddexp2(s, s_other)
    mine, theirs = (torch.exp2(x - total)[..., None] for x in (s, s_other))
    v.copy_(v.float() * mine + v_other.float() * theirs)
    s.copy_(total)
