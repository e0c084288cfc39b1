// TILE neighbouring keys and values of one head, read where they are cached.
//
// Blocks lie scattered, which the processor's own prefetching cannot follow. So while a tile is
// read, what is needed later is asked for, as many bytes as are read and line by line: asked for
// all at once they would stand in the way of the loads that are due. Beside keys these are the
// values of the same tile, beside values the keys of the tile that follows. Where bfloat16 has to
// be unpacked, which takes longer, more time ahead is better: the same places of the tile that
// follows. A head_dim that is no multiple of TILE misses some lines.
#pragma once

#include <algorithm>

#include "cell.h"
#include "factor.h"

namespace octavo {

constexpr int TILE = 64;
constexpr int VECTORS = TILE / W;
constexpr int LINE = 64;  // bytes of a cache line

// Always inline, as GCC takes a call for one without effect and drops it.
ALWAYS_INLINE void prefetch(const void* from) { __builtin_prefetch(from, 0, 3); }

// b[dimension, key] in factors. Vector i of the keys starts at `vectors[i]`; they must lie in one
// block.
template <class T>
struct CachedKeys {
    typedef Factor<T> F;
    static constexpr int STEP = PER_WORD<T>;
    const uint32_t* vectors[VECTORS];
    int64_t block_size;
    const T* const* values;  // of the same keys: a vector's take as many bytes, in one piece
    const CachedKeys* next;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, Vector<F> (&b)[STEP][C]) const {
        constexpr int BYTES = 4 * W;
        const int64_t word = k / STEP;
        for (int c = 0; c < C; c++) {
            const int64_t v = column / W + c;
            const uint32_t* from = vectors[v] + word * block_size;
            if constexpr (STEP == 1) {
                b[0][c] = load_raw<Vector<F>>(from);
                if (word * BYTES % LINE == 0)
                    prefetch(reinterpret_cast<const char*>(values[v * W]) + word * BYTES);
            } else {
                split_pairs(from, b[0][c], b[1][c]);
                if (c * BYTES % LINE == 0) prefetch(next->vectors[v] + word * block_size);
            }
        }
    }
};

// b[key, dimension] in factors: a pair is a dimension of two neighbouring keys.
template <class T>
struct CachedValues {
    typedef Factor<T> F;
    static constexpr int STEP = 1;
    const T* rows[TILE];
    const CachedKeys<T>* next_keys;
    const CachedValues* next;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, Vector<F> (&b)[1][C]) const {
        if constexpr (PAIRED<F>)
            zip(rows[k * 2] + column, rows[k * 2 + 1] + column, b[0]);
        else
            for (int c = 0; c < C; c++) b[0][c] = load(rows[k] + column + c * W);
        ask<C>(k, column);
    }

    // Asks for what comes later than C vectors of factor k.
    template <int C>
    ALWAYS_INLINE void ask(int64_t k, int64_t column) const {
        if constexpr (PER_WORD<T> == 1) {
            // So many steps over TILE columns are as many bytes as so many words of the keys.
            const int64_t word = column / TILE * (TILE / NUMBERS<F>) + k;
            for (int c = 0; c < C; c++)
                if (c * 4 * W % LINE == 0)
                    prefetch(next_keys->vectors[(column / W + c) % VECTORS] +
                             word * next_keys->block_size);
        } else {
            for (int c = 0; c < C; c++)
                if (c * W * int(sizeof(T)) % LINE == 0) prefetch(next->rows[k] + column + c * W);
        }
    }

    F at(int64_t k, int64_t d) const {
        if constexpr (PAIRED<F>)
            return {rows[k * 2][d], rows[k * 2 + 1][d]};
        else
            return to_float(rows[k][d]);
    }
};

template <class T>
struct Tile {
    CachedKeys<T> keys;
    CachedValues<T> values;

    // Points at the keys from `at` on, a multiple of TILE, of a row with `length` of them. Places
    // past that repeat the ones before: they may be asked for, and a value may complete a pair.
    void locate(const Cells<T>& cells, const int32_t* table, int64_t head, int64_t at,
                int64_t length) {
        const int64_t size = cells.block_size, shift = __builtin_ctzll(size);
        keys.block_size = size;
        keys.values = values.rows;
        for (int64_t v = 0; v < VECTORS; v++) {
            const int64_t key = at + v * W;
            keys.vectors[v] = key < length
                                  ? cells.keys(table[key >> shift], head) + (key & (size - 1))
                                  : keys.vectors[v - 1];
        }
        int64_t j = 0;
        while (j < TILE && at + j < length) {
            const int64_t offset = (at + j) & (size - 1);
            const T* row = cells.values(table[(at + j) >> shift], head) + offset * cells.head_dim;
            const int64_t past = std::min<int64_t>({TILE, j + size - offset, length - at});
            for (; j < past; j++, row += cells.head_dim) values.rows[j] = row;
        }
        for (; j < TILE; j++) values.rows[j] = values.rows[j - 1];
    }

    void followed_by(const Tile& other) {
        keys.next = values.next_keys = &other.keys;
        values.next = &other.values;
    }
};

}  // namespace octavo
