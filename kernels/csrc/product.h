// Small matrix products, out (+)= a @ b, where b's rows come from a cache or a buffer.
//
// Each element of `out` is one chain of multiply-adds over the depth, in order, whatever the shape
// around it and wherever b lies: that is why a query's result is the same bits in any company.
#pragma once

#include "factor.h"

namespace octavo {

constexpr int ROWS = 6;                   // of `a`, held in registers at once ...
constexpr int COLUMNS = W == 16 ? 4 : 2;  // ... times so many vectors of b

// b as a matrix of factors. A source of rows yields STEP of them at a time.
template <class F>
struct Packed {
    static constexpr int STEP = 1;
    const F* data;
    int64_t stride;

    template <int C>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, Vector<F> (&b)[1][C]) const {
        for (int c = 0; c < C; c++)
            b[0][c] = load_raw<Vector<F>>(data + k * stride + column + c * W);
    }
};

template <int R, int C, class F, class B>
ALWAYS_INLINE void product_tile(const F* a, int64_t lda, int64_t depth, const B& b, int64_t column,
                                float* out, int64_t ldo, bool add) {
    vf sum[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) sum[r][c] = add ? load(out + r * ldo + c * W) : vf{};
    for (int64_t k = 0; k < depth; k += B::STEP) {
        Vector<F> row[B::STEP][C];
        b.fetch(k, column, row);
#pragma GCC unroll 16
        for (int s = 0; s < B::STEP; s++)
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                Vector<F> x = splat(a[r * lda + k + s]);
#pragma GCC unroll 16
                for (int c = 0; c < C; c++) sum[r][c] = multiply_add(x, row[s][c], sum[r][c]);
            }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) store(out + r * ldo + c * W, sum[r][c]);
}

template <int C, class F, class B>
void product_columns(const F* a, int64_t lda, int64_t rows, int64_t depth, const B& b,
                     int64_t column, float* out, int64_t ldo, bool add) {
    for (; rows >= ROWS; rows -= ROWS, a += ROWS * lda, out += ROWS * ldo)
        product_tile<ROWS, C>(a, lda, depth, b, column, out, ldo, add);
    switch (rows) {
        case 5: return product_tile<5, C>(a, lda, depth, b, column, out, ldo, add);
        case 4: return product_tile<4, C>(a, lda, depth, b, column, out, ldo, add);
        case 3: return product_tile<3, C>(a, lda, depth, b, column, out, ldo, add);
        case 2: return product_tile<2, C>(a, lda, depth, b, column, out, ldo, add);
        case 1: return product_tile<1, C>(a, lda, depth, b, column, out, ldo, add);
    }
}

// out[rows, vectors * W] (+)= a[rows, depth] @ b[depth, vectors * W].
template <class F, class B>
void product(const F* a, int64_t lda, int64_t rows, int64_t depth, const B& b,
             int64_t vectors, float* out, int64_t ldo, bool add) {
    int64_t v = 0;
    for (; v + COLUMNS <= vectors; v += COLUMNS)
        product_columns<COLUMNS>(a, lda, rows, depth, b, v * W, out + v * W, ldo, add);
    if constexpr (COLUMNS > 2)
        for (; v + 2 <= vectors; v += 2)
            product_columns<2>(a, lda, rows, depth, b, v * W, out + v * W, ldo, add);
    for (; v < vectors; v++)
        product_columns<1>(a, lda, rows, depth, b, v * W, out + v * W, ldo, add);
}

}  // namespace octavo
