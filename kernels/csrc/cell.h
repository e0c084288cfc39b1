// Where a key or a value lies inside a block.
//
// A cell is one head's keys, or values, of one block. Values are rows: [block_size, head_dim].
// Keys are kept transposed, so that a vector holds the same dimension of neighbouring tokens and
// scores need no sums across a vector: [head_dim, block_size] in float32, and in bfloat16
// [head_dim / 2, block_size, 2], two dimensions to a 32-bit word. Either way a key is a column of
// 32-bit words, block_size words apart.
#pragma once

#include "simd.h"

namespace octavo {

template <class T>
struct Cells {
    char* data;
    int64_t block_stride;
    int64_t kv_heads;
    int64_t block_size;
    int64_t head_dim;

    int64_t bytes() const { return block_size * head_dim * int64_t(sizeof(T)); }

    uint32_t* keys(int64_t block, int64_t head) const {
        return reinterpret_cast<uint32_t*>(data + block * block_stride + head * bytes());
    }

    T* values(int64_t block, int64_t head) const {
        return reinterpret_cast<T*>(data + block * block_stride + (kv_heads + head) * bytes());
    }
};

// [num_tokens, heads, head_dim]: heads lie next to each other, tokens `stride` bytes apart.
struct Tokens {
    char* data;
    int64_t stride;

    template <class T>
    T* at(int64_t token) const {
        return reinterpret_cast<T*>(data + token * stride);
    }
};

}  // namespace octavo
