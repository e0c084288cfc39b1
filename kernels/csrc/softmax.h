// Online softmax: weights relative to the largest score so far, corrected when it grows.
#pragma once

#include <algorithm>

#include "tile.h"
#include "tiles.h"

namespace octavo {

constexpr float NOTHING = -1e38f;  // the maximum of no scores; finite, so that differences are too

// Rows that products by tiles may write behind those that there are.
constexpr int64_t SPARE_ROWS = HAS_TILES ? 32 : 0;

// Softmax-weighted sums of values for some rows, still to be divided by the sum of the weights.
// `tops` are the largest scores, to base 2, that the weights are relative to.
struct State {
    float* sums;  // [rows + SPARE_ROWS, width]
    float* tops;
    float* weights;

    static int64_t size(int64_t rows, int64_t width) { return rows * (width + 2) + SPARE_ROWS * width; }

    static State at(float* memory, int64_t rows, int64_t width) {
        float* tops = memory + (rows + SPARE_ROWS) * width;
        return {memory, tops, tops + rows};
    }
};

// Takes `part` into `total`. A part without weight changes nothing, bit for bit.
inline void fold(const State& total, const State& part, int64_t rows, int64_t width) {
    for (int64_t first = 0; first < rows; first += W) {
        const int64_t count = std::min<int64_t>(W, rows - first);
        vf ours{}, theirs{};
        std::memcpy(&ours, total.tops + first, count * sizeof(float));
        std::memcpy(&theirs, part.tops + first, count * sizeof(float));
        const vf top = max(ours, theirs), keep = exp2(ours - top), take = exp2(theirs - top);
        std::memcpy(total.tops + first, &top, count * sizeof(float));
        for (int64_t i = 0, r = first; i < count; i++, r++) {
            total.weights[r] = total.weights[r] * keep[i] + part.weights[r] * take[i];
            float *sums = total.sums + r * width, *more = part.sums + r * width;
            for (int64_t d = 0; d < width; d += W)
                store(sums + d, load(sums + d) * splat(keep[i]) + load(more + d) * splat(take[i]));
        }
    }
}

// Weights of scores; returns `sum` and theirs, by lanes.
inline vf weigh(const vf (&scores)[VECTORS], float, float top, float* to, vf sum) {
    for (int v = 0; v < VECTORS; v++) {
        vf p = exp2(scores[v] - splat(top));
        sum += p;
        store(to + v * W, p);
    }
    return sum;
}

#if defined(__AVX512BF16__)
// The same in pairs, of scores still to be scaled. Summed as rounded, so that the result stays a
// mean of the values.
inline vf weigh(const vf (&scores)[VECTORS], float scale, float top, Pair* to, vf sum) {
    const vu ones = splat(Pair{bf16{0x3f80}, bf16{0x3f80}});
    for (int v = 0; v < VECTORS; v += 2) {
        vu p = round_to_pairs(
            exp2_to_round(multiply_subtract(scores[v], splat(scale), splat(top))),
            exp2_to_round(multiply_subtract(scores[v + 1], splat(scale), splat(top))));
        sum = multiply_add(p, ones, sum);
        std::memcpy(to + v / 2 * W, &p, sizeof(p));
    }
    return sum;
}
#endif

// Turns one row's scores of a tile into weights, as factors, which may lie in the same place; of
// the first `seen` keys only the last `window` count. `scale`, above 0, is for scores of pairs,
// whose queries cannot carry it without being rounded again. The weights' sum is kept by lanes
// until the end.
//
// Pairs are multiplied so fast that corrections show, so there the maximum is only raised once it
// is well passed. Weights up to 2^8 are as exact as those up to 1.
template <class F>
inline void softmax(const float* scores, float scale, int64_t seen, int64_t window, float& top,
                    vf& weight, float* sums, int64_t width, F* to) {
    vf s[VECTORS];
    for (int v = 0; v < VECTORS; v++) s[v] = load(scores + v * W);
    if (seen < TILE || seen > window) {
        const int32_t from = int32_t(std::max<int64_t>(0, seen - window));
        vi lane;
        for (int i = 0; i < W; i++) lane[i] = i;
        for (int v = 0; v < VECTORS; v++) {
            s[v] = lane + v * W < int32_t(seen) ? s[v] : splat(-INFINITY);
            s[v] = lane + v * W >= from ? s[v] : splat(-INFINITY);
        }
    }
    vf highest = s[0];
    for (int v = 1; v < VECTORS; v++) highest = max(s[v], highest);
    if constexpr (PAIRED<F>) highest *= scale;
    constexpr float SLACK = PAIRED<F> ? 8.0f : 0.0f;
    if (any_above(highest, top + SLACK)) {
        const float new_top = max_of(highest);
        vf keep = exp2(splat(top - new_top));
        weight *= keep;
        for (int64_t d = 0; d < width; d += W) store(sums + d, load(sums + d) * keep);
        top = new_top;
    }
    weight = weigh(s, scale, top, to, weight);
}

}  // namespace octavo
