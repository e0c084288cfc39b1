// Online softmax: weights relative to the largest score so far, corrected when it grows.
#pragma once

#include <algorithm>

#include "tile.h"

namespace octavo {

constexpr float NOTHING = -1e38f;  // the maximum of no scores; finite, so that differences are too

// Softmax-weighted sums of values for some rows, still to be divided by the sum of the weights.
// `tops` are the largest scores, to base 2, that the weights are relative to.
struct State {
    float* sums;  // [rows, width]
    float* tops;
    float* weights;

    static int64_t size(int64_t rows, int64_t width) { return rows * (width + 2); }

    static State at(float* memory, int64_t rows, int64_t width) {
        return {memory, memory + rows * width, memory + rows * (width + 1)};
    }
};

// Takes `part` into `total`. A part without weight changes nothing, bit for bit.
inline void fold(const State& total, const State& part, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        float top = std::max(total.tops[r], part.tops[r]);
        float keep = exp2(total.tops[r] - top), take = exp2(part.tops[r] - top);
        total.tops[r] = top;
        total.weights[r] = total.weights[r] * keep + part.weights[r] * take;
        float *sums = total.sums + r * width, *more = part.sums + r * width;
        for (int64_t d = 0; d < width; d += W)
            store(sums + d, load(sums + d) * splat(keep) + load(more + d) * splat(take));
    }
}

// Turns one row's scores of a tile into weights; only the first `seen` keys count. The weights'
// sum is kept by lanes until the end.
inline void softmax(float* scores, int64_t seen, float& top, vf& weight, float* sums,
                    int64_t width) {
    constexpr int VECTORS = TILE / W;
    vf s[VECTORS], highest = splat(NOTHING);
    if (seen >= TILE) {
        for (int v = 0; v < VECTORS; v++) s[v] = load(scores + v * W);
    } else {
        vi lane;
        for (int i = 0; i < W; i++) lane[i] = i;
        for (int v = 0; v < VECTORS; v++)
            s[v] = lane + v * W < int32_t(seen) ? load(scores + v * W) : splat(-INFINITY);
    }
    for (int v = 0; v < VECTORS; v++) highest = max(s[v], highest);
    float new_top = std::max(top, max_of(highest));
    if (new_top != top) {
        vf keep = exp2(splat(top - new_top));
        weight *= keep;
        for (int64_t d = 0; d < width; d += W) store(sums + d, load(sums + d) * keep);
        top = new_top;
    }
    for (int v = 0; v < VECTORS; v++) {
        vf p = exp2(s[v] - splat(top));
        weight += p;
        store(scores + v * W, p);
    }
}

}  // namespace octavo
