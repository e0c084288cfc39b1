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

// Two vectors of keys, from vector `first` on. `chore` is called once a step.
template <class Chore>
struct KeyTiles {
    const CachedKeys<bf16>& keys;
    const int64_t first;
    Chore& chore;
    const int64_t stride = keys.block_size * 4;

    const char* at(int64_t k, int half) const {
        return reinterpret_cast<const char*>(keys.vectors[first + half]) + k * 16 * stride;
    }
    static constexpr bool stays(int64_t) { return true; }
    ALWAYS_INLINE void meanwhile(int64_t, int quarter) const {
        if (quarter == 1) chore();
    }
};

// Two vectors of dimensions of packed values.
template <class Chore>
struct ValueTiles {
    const Pair* values;
    const int64_t dim;
    Chore& chore;
    const int64_t stride = dim * int64_t(sizeof(Pair));

    const char* at(int64_t k, int half) const {
        return reinterpret_cast<const char*>(values + k * 16 * dim + half * W);
    }
    static constexpr bool stays(int64_t) { return true; }
    ALWAYS_INLINE void meanwhile(int64_t, int quarter) const {
        if (quarter == 1) chore();
    }
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

// Where W of TILE_INPUTS dimensions lie, the first or the second half of them.
struct Places {
    alignas(64) int32_t lanes[2][W] = {};

    template <class Place>
    constexpr explicit Places(Place place) {
        for (int i = 0; i < 2 * W; i++) lanes[i / W][i % W] = place(i);
    }

    // Dimensions d to d + W of a row of sums, in order.
    vf dimensions(const float* row, int64_t d) const {
        const float* from = row + d / TILE_INPUTS * TILE_INPUTS;
        const int32_t* half = lanes[d % TILE_INPUTS != 0];
#if defined(__AVX512F__)
        return as<vf>(_mm512_permutex2var_ps(as<__m512>(load(from)), load_raw<__m512i>(half),
                                             as<__m512>(load(from + W))));
#else
        return splat(from[half[0]]);  // never asked: there are no tiles
#endif
    }
};

// As packed values leave them.
inline constexpr Places ZIPPED([](int i) { return i % 4 + i / 8 * 4 + i / 4 % 2 * W; });

// Even ones before odd ones.
inline constexpr Places MERGED([](int i) { return i / 2 + i % 2 * W; });

}  // namespace octavo
