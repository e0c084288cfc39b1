// Attention's products of a few rows as tiles would sum them, bit for bit, but in vectors.
//
// A decode waits for memory, and tiles gain it nothing: rows that are not there are multiplied all
// the same. Vectors load line by line, and with each line ask for one that is needed soon, which
// keeps the memory busy all the time; a decode is a quarter faster.
//
// TDPBF16PS adds the products of even and of odd inputs apart, over one tile of TILE_INPUTS, then
// both to the sums: see `TileTwin`.
#pragma once

#include "tile.h"
#include "tiles.h"

namespace octavo {

constexpr int FEW_ROWS = 6;  // at most, of a head

// Two neighbouring dimensions of C vectors of keys, as floats.
struct KeyWords {
    const CachedKeys<bf16>& keys;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, vf (&even)[C], vf (&odd)[C]) const {
        vu words[1][C];
        keys.fetch(k, column, words);
        for (int c = 0; c < C; c++) split_pairs(&words[0][c], even[c], odd[c]);
    }
};

// Two neighbouring values, as floats: of each TILE_INPUTS dimensions the even ones, then the odd.
struct ValueWords {
    const CachedValues<bf16>& values;

    ALWAYS_INLINE void fetch(int64_t k, int64_t column, vf (&even)[2], vf (&odd)[2]) const {
        split_pairs(values.rows[2 * k] + column, even[0], even[1]);
        split_pairs(values.rows[2 * k + 1] + column, odd[0], odd[1]);
        values.ask<2>(k, column);
    }
};

// out (+)= a [R, steps * TILE_INPUTS] @ b, for two vectors from `column` on.
template <int R, class B>
ALWAYS_INLINE void few_rows_columns(const Pair* a, int64_t lda, int64_t steps, const B& b,
                                    int64_t column, float* out, int64_t ldo, bool add) {
    constexpr int PAIRS = TILE_INPUTS / 2, C = 2;
    out += column;
    for (int64_t step = 0; step < steps; step++, a += PAIRS, add = true) {
        float factors[R][2][PAIRS];
        for (int r = 0; r < R; r++)
            for (int i = 0; i < PAIRS; i += W) {
                vf even, odd;
                split_pairs(a + r * lda + i, even, odd);
                store(factors[r][0] + i, even);
                store(factors[r][1] + i, odd);
            }
        vf evens[R][C] = {}, odds[R][C] = {};
        for (int k = 0; k < PAIRS; k++) {
            vf even[C], odd[C];
            b.fetch(step * PAIRS + k, column, even, odd);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const vf x = splat(factors[r][0][k]), y = splat(factors[r][1][k]);
#pragma GCC unroll 16
                for (int c = 0; c < C; c++) {
                    evens[r][c] = multiply_add(x, even[c], evens[r][c]);
                    odds[r][c] = multiply_add(y, odd[c], odds[r][c]);
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                float* to = out + r * ldo + c * W;
                const vf sum = evens[r][c] + odds[r][c];
                store(to, add ? load(to) + sum : sum);
            }
    }
}

// The same for all of `vectors`, or one more.
template <int R = FEW_ROWS, class B>
void few_rows_product(const Pair* a, int64_t lda, int64_t rows, int64_t steps, const B& b,
                      int64_t vectors, float* out, int64_t ldo, bool add) {
    if constexpr (R > 1)
        if (rows < R) return few_rows_product<R - 1>(a, lda, rows, steps, b, vectors, out, ldo, add);
    for (int64_t v = 0; v < vectors; v += 2)
        few_rows_columns<R>(a, lda, steps, b, v * W, out, ldo, add);
}

}  // namespace octavo
