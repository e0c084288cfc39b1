// Cached keys and values as the right side of a product by tiles: see `tiles.h`.
//
// Keys of bfloat16 lie in a block as a tile reads them. A tile of values wants neighbouring keys in
// pairs, so they are copied first: packed values are [TILE / 2, dim] pairs. Zipping is quickest
// within quarters of a vector, which leaves TILE_INPUTS neighbouring dimensions in another order;
// it is put right once a result is written.
#pragma once

#include "tile.h"
#include "tiles.h"

namespace octavo {

// Whether tiles read them where they lie.
template <class T>
bool fit_tiles(const Cells<T>& cells) {
    return HAS_TILES && PAIRED<Factor<T>> && cells.head_dim % TILE_INPUTS == 0 &&
           cells.block_size % W == 0 && tiles_work();
}

// Two vectors of keys, from vector `first` on.
struct KeyTiles {
    const CachedKeys<bf16>& keys;
    const int64_t first;
    const int64_t stride = keys.block_size * 4;

    const char* at(int64_t k, int half) const {
        return reinterpret_cast<const char*>(keys.vectors[first + half]) + k * 16 * stride;
    }
    void ahead(int64_t, int) const {}
};

// Two vectors of dimensions of packed values.
struct ValueTiles {
    const Pair* values;
    const int64_t dim;
    const int64_t stride = dim * int64_t(sizeof(Pair));

    const char* at(int64_t k, int half) const {
        return reinterpret_cast<const char*>(values + k * 16 * dim + half * W);
    }
    void ahead(int64_t, int) const {}
};

// Packs the first `keys` values, which is even, and asks for all of the tile that follows.
inline void pack_values(const CachedValues<bf16>& cached, int64_t keys, int64_t dim, Pair* to) {
#if defined(__AVX512BF16__)
    const int64_t size = cached.next_keys->block_size;
    for (int64_t key = 0; key < keys; key += 2)
        for (int64_t d = 0; d < dim; d += TILE_INPUTS, to += TILE_INPUTS) {
            const __m512i low = load_raw<__m512i>(cached.rows[key] + d);
            const __m512i high = load_raw<__m512i>(cached.rows[key + 1] + d);
            const __m512i evens = _mm512_unpacklo_epi16(low, high);
            const __m512i odds = _mm512_unpackhi_epi16(low, high);
            std::memcpy(to, &evens, sizeof(evens));
            std::memcpy(to + W, &odds, sizeof(odds));
            prefetch(cached.next->rows[key] + d);
            prefetch(cached.next->rows[key + 1] + d);
            const int64_t word = d / TILE_INPUTS * (TILE / 4) + key / 4;
            const int64_t vector = key % 4;
            prefetch(cached.next_keys->vectors[vector] + word * size);
            prefetch(cached.next_keys->vectors[vector + 1] + word * size);
        }
#endif
}

// W lanes of two vectors that make up TILE_INPUTS dimensions, by place: those of `high` from W on.
inline vf pick(const float* lows, vi place) {
    const vf low = load(lows), high = load(lows + W);
#if defined(__AVX512F__)
    return as<vf>(_mm512_permutex2var_ps(as<__m512>(low), as<__m512i>(place), as<__m512>(high)));
#else
    return place[0] ? high : low;  // never asked: there are no tiles
#endif
}

// Dimensions d to d + W of a row of sums, in order, as packed values leave them.
inline vf zipped_dimensions(const float* row, int64_t d) {
    const int half = int(d % TILE_INPUTS != 0) * W / 2;
    vi place;
    for (int i = 0; i < W; i++) place[i] = i % 4 + i / 8 * 4 + i / 4 % 2 * W + half;
    return pick(row + d / TILE_INPUTS * TILE_INPUTS, place);
}

// The same where even dimensions lie before odd ones.
inline vf merged_dimensions(const float* row, int64_t d) {
    const int half = int(d % TILE_INPUTS != 0) * W / 2;
    vi place;
    for (int i = 0; i < W; i++) place[i] = i / 2 + i % 2 * W + half;
    return pick(row + d / TILE_INPUTS * TILE_INPUTS, place);
}

}  // namespace octavo
