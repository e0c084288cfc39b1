// The likeliest token of each row of logits.
#include <limits>

#include "octavo.h"
#include "rows.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int64_t SMALL = 64 * 1024;  // elements that one thread does sooner than two

inline bool any(vi mask) {
    int32_t lanes[W], found = 0;
    std::memcpy(lanes, &mask, sizeof(lanes));
    for (int32_t lane : lanes) found |= lane;
    return found;
}

// The first index for which `holds`, which some element does; `holds` takes vectors.
template <class T, class Holds>
int64_t first_of(const T* row, int64_t width, Holds holds) {
    int64_t i = 0;
    for (; i + W <= width; i += W)
        if (any(holds(load(row + i)))) break;
    for (; i < width; i++)
        if (any(holds(splat(to_float(row[i]))))) break;
    return i;
}

// A NaN is above all numbers; among equals the first is chosen.
template <class T>
void choose(const T* row, int64_t width, int64_t* index, float* value) {
    vf best = splat(-std::numeric_limits<float>::infinity());
    vi odd{};
    for_vectors(width, [&](int64_t i, auto count) {
        vf x = load_some(row + i, count);
        if constexpr (std::is_same_v<decltype(count), int>)
            for (int lane = count; lane < W; lane++) x[lane] = to_float(row[i]);
        odd |= x != x;
        best = max(x, best);
    });
    const vf top = splat(max_of(best));
    if (any(odd))
        *index = first_of(row, width, [](vf x) { return x != x; });
    else
        *index = first_of(row, width, [&](vf x) { return x == top; });
    *value = to_float(row[*index]);
}

template <class T>
void choose_all(const char* x, int64_t stride, int64_t rows, int64_t width, int64_t* indices,
                float* values, int threads) {
    for_each(rows, rows * width < SMALL, threads, [&](int64_t r) {
        choose(row_of<T>(x, r * stride), width, indices + r, values + r);
    });
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" void octavo_argmax(int type, const char* x, int64_t stride, int64_t rows, int64_t width,
                              int64_t* indices, float* values, int threads) {
    auto run = type == 0 ? choose_all<float> : choose_all<bf16>;
    run(x, stride, rows, width, indices, values, threads);
}
