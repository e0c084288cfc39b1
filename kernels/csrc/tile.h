// TILE neighbouring keys and values of one head, read where they are cached.
//
// Blocks lie scattered, which the processor's own prefetching cannot follow. So while a tile is
// read, the same places of the tile that is needed next are asked for, line by line: asked for
// all at once they would stand in the way of the loads that the present tile needs.
#pragma once

#include <algorithm>

#include "cell.h"
#include "simd.h"

namespace octavo {

constexpr int TILE = 64;

// For vector `c` of neighbouring ones of `bytes` each: once a cache line. Always inline, as GCC
// takes a call for one without effect and drops it.
ALWAYS_INLINE void prefetch(const void* from, int c, int bytes) {
    if (c * bytes % 64 == 0) __builtin_prefetch(from, 0, 2);
}

// b[dimension, key]. Vector i of the keys starts at `vectors[i]`; they must lie in one block.
template <class T>
struct CachedKeys {
    static constexpr int STEP = 4 / int(sizeof(T));
    const uint32_t* vectors[TILE / W];
    int64_t block_size;
    const CachedKeys* next;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, vf (&b)[STEP][C]) const {
        for (int c = 0; c < C; c++) {
            const int64_t v = column / W + c, word = k / STEP * block_size;
            if constexpr (STEP == 1)
                b[0][c] = load_raw<vf>(vectors[v] + word);
            else
                split_pairs(vectors[v] + word, b[0][c], b[1][c]);
            prefetch(next->vectors[v] + word, c, 4 * W);
        }
    }
};

// b[key, dimension].
template <class T>
struct CachedValues {
    static constexpr int STEP = 1;
    const T* rows[TILE];
    const CachedValues* next;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, vf (&b)[1][C]) const {
        const T *row = rows[k] + column, *ahead = next->rows[k] + column;
        for (int c = 0; c < C; c++) {
            b[0][c] = load(row + c * W);
            prefetch(ahead + c * W, c, W * int(sizeof(T)));
        }
    }
};

template <class T>
struct Tile {
    CachedKeys<T> keys;
    CachedValues<T> values;

    // Points at the keys from `at` on, a multiple of TILE, of a row with `length` of them. Places
    // past the row's last block repeat the ones before, so that each may be prefetched.
    void locate(const Cells<T>& cells, const int32_t* table, int64_t head, int64_t at,
                int64_t length) {
        const int64_t size = cells.block_size, shift = __builtin_ctzll(size);
        keys.block_size = size;
        if (size >= W)
            for (int64_t v = 0; v < TILE / W; v++) {
                const int64_t key = at + v * W;
                keys.vectors[v] = key < length
                                      ? cells.keys(table[key >> shift], head) + (key & (size - 1))
                                      : keys.vectors[v - 1];
            }
        int64_t j = 0;
        while (j < TILE && at + j < length) {
            const int64_t offset = (at + j) & (size - 1);
            const T* row = cells.values(table[(at + j) >> shift], head) + offset * cells.head_dim;
            const int64_t past = std::min<int64_t>(TILE, j + size - offset);
            for (; j < past; j++, row += cells.head_dim) values.rows[j] = row;
        }
        for (; j < TILE; j++) values.rows[j] = values.rows[j - 1];
    }

    void followed_by(const Tile& other) {
        keys.next = &other.keys;
        values.next = &other.values;
    }
};

}  // namespace octavo
