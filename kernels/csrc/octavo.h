// The C interface: what Python passes by ctypes. Strides count bytes unless said otherwise.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// kernels/base.py::Batch, by pointer.
struct Batch {
    const int32_t* qo_indptr;
    const int32_t* kv_indptr;
    const int32_t* kv_indices;
    const int32_t* kv_last_page_len;
    const int32_t* slots;
    int64_t num_rows;
    int64_t num_tokens;
    int64_t num_indices;
    int64_t block_size;
};

// `type`: 0 is float32, 1 is bfloat16. `threads`: at most so many; results do not depend on it.

// 0, or what is wrong: 1 a slot, 2 a block, 3 a row's lengths are out of bounds.
int octavo_check(const Batch* batch, int64_t num_blocks);

// `cache` is one layer: [num_blocks, 2, kv_heads, block_size, head_dim], each block contiguous.
// Queries, keys, values and results are [num_tokens, heads, head_dim], each token contiguous. With
// `window` above 0, a query sees the last so many keys up to its own.
void octavo_attention(int type, const Batch* batch, char* cache, int64_t block_stride,
                      int64_t kv_heads, int64_t head_dim, const char* query, int64_t query_stride,
                      char* out, int64_t out_stride, int64_t heads, float scale, int64_t window,
                      int threads);

void octavo_write_kv(int type, const Batch* batch, char* cache, int64_t block_stride,
                     int64_t kv_heads, int64_t head_dim, const char* key, int64_t key_stride,
                     const char* value, int64_t value_stride, int threads);

// The same after turning queries and keys in place by their positions. 0, or 1 if a position is
// outside of `cos_sin` [max_len, 2, head_dim / 2]; then nothing is done.
int octavo_rotary_write_kv(int type, const Batch* batch, char* cache, int64_t block_stride,
                           int64_t kv_heads, int64_t head_dim, char* query, int64_t query_stride,
                           int64_t heads, char* key, int64_t key_stride, const char* value,
                           int64_t value_stride, const float* cos_sin, int64_t max_len,
                           const int32_t* positions, int threads);

void octavo_copy_blocks(char* cache, int64_t block_bytes, const int64_t* pairs, int64_t num_pairs,
                        int threads);

void octavo_rms_norm(int type, const char* x, int64_t token_stride, int64_t head_stride,
                     int64_t tokens, int64_t heads, int64_t width, const char* weight, float eps,
                     char* out, int64_t out_token_stride, int64_t out_head_stride, int threads);

void octavo_add_rms_norm(int type, const char* x, int64_t x_stride, char* residual,
                         int64_t residual_stride, int64_t rows, int64_t width, const char* weight,
                         float eps, char* out, int64_t out_stride, int threads);

void octavo_silu_and_mul(int type, const char* gate_up, int64_t in_stride, char* out,
                         int64_t out_stride, int64_t rows, int64_t width, int threads);

// `weight` is [outputs, inputs] in panels: see panel.h. `bias` is [outputs], or null. `scales` is
// null, or what each output's sum is multiplied by: [outputs], and panels are int8. Else a row of
// `x` and a step from row to row must be a multiple of 4 bytes. If `gated`, panels of the first and
// of the second half of the outputs lie by turns, and `out` is silu(first) * second. What is `own`
// has its rows, without gaps, in the order that suits a product of so many: one call's `out` may be
// the next one's `x`.
void octavo_linear(int type, const char* x, int64_t x_stride, int64_t rows, int64_t inputs,
                   const char* weight, int64_t outputs, const char* bias, const float* scales,
                   int gated, int x_own, int out_own, char* out, int64_t out_stride, int threads);

// Of each row of x [rows, width], at least 1 wide: where its largest number is first, and which.
void octavo_argmax(int type, const char* x, int64_t stride, int64_t rows, int64_t width,
                   int64_t* indices, float* values, int threads);

// Whether this process multiplies bfloat16 by tiles: see tiles.h.
int octavo_has_tiles();

// The number of one of the functions above that work on a step's tensors, -1 if it is none.
int octavo_playable(const char* name);

// Makes `count` calls: see play.cpp. Stops at the first that has a result other than 0, which is
// then the result.
int octavo_play(const int64_t* calls, int64_t count);
}
#pragma GCC visibility pop
