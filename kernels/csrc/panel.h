// Weights in panels of PANEL outputs, as a product reads them: a panel at a time, and in order.
//
// While a panel is multiplied, the one after it is asked for, evenly: a step of few rows takes as
// long as reading the weights does.
#pragma once

#include <vector>

#include "product.h"

namespace octavo {

constexpr int PANEL = 32;
constexpr int PANEL_BYTES = 4 * PANEL;  // a word of each output
constexpr int LINE = 64;                // bytes of a cache line

// One panel of 32-bit words as a matrix of factors. With every word of it, LINES lines of what
// comes next are asked for, `step` bytes on.
template <class T, int LINES>
struct Panel {
    typedef Factor<T> F;
    static constexpr int STEP = PER_WORD<T>;
    const char* data;
    const char* next;
    int64_t step;

    template <int N>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, Vector<F> (&b)[STEP][N]) const {
        const int64_t word = k / STEP;
        const char* from = data + word * PANEL_BYTES + column * 4;
        for (int c = 0; c < N; c++)
            if constexpr (STEP == 1)
                b[0][c] = load_raw<Vector<F>>(from + c * 4 * W);
            else
                split_pairs(from + c * 4 * W, b[0][c], b[1][c]);
        for (int l = 0; l < LINES; l++) __builtin_prefetch(next + word * step + l * LINE, 0, 3);
    }
};

// A weight [outputs, inputs] whose panels are [words, PANEL] 32-bit words: one float32 each, or two
// bfloat16 of neighbouring inputs.
template <class T>
struct Words {
    const char* data;
    const int64_t inputs;

    int64_t width() const { return inputs; }
    int64_t bytes() const { return PANEL * inputs * int64_t(sizeof(T)); }
    const char* panel(int64_t index) const { return data + index * bytes(); }

    // For a single pass over a panel, and then for one of several.
    Panel<T, PANEL_BYTES / LINE> once(const char* panel, const char* ahead) const {
        return {panel, ahead, PANEL_BYTES};
    }
    const char* ready(const char* panel, int) const { return panel; }
    Panel<T, 1> share(const char* panel, const char* ahead, int64_t p, int64_t passes) const {
        return {panel, ahead + bytes() * p / passes, PANEL_BYTES / passes};
    }
};

// Two inputs of N vectors of outputs of an int8 panel, as factors. A small integer's float ends in
// 16 zeros: it is a bfloat16 as it stands.
template <class F, int N>
ALWAYS_INLINE void widen_levels(const int8_t* from, Vector<F> (&to)[2 / NUMBERS<F>][N]) {
    for (int c = 0; c < N; c++) {
        const vf first = load(from + c * W), second = load(from + PANEL + c * W);
        if constexpr (PAIRED<F>) {
            to[0][c] = as<vu>(first) >> 16 | as<vu>(second);
        } else {
            to[0][c] = first;
            to[1][c] = second;
        }
    }
}

// One int8 panel as a matrix of factors, widened whenever it is read. Two inputs of it are a line,
// and with them a line of what comes next is asked for.
template <class F>
struct LevelPanel {
    static constexpr int STEP = 2 / NUMBERS<F>;
    const int8_t* data;
    const char* next;

    template <int N>
    ALWAYS_INLINE void fetch(int64_t k, int64_t column, Vector<F> (&b)[STEP][N]) const {
        const int64_t at = k * NUMBERS<F> * PANEL;
        widen_levels<F>(data + at + column, b);
        __builtin_prefetch(next + at, 0, 3);
    }
};

// A weight [outputs, inputs] whose panels are [width, PANEL] int8; beyond the inputs lie zeros.
template <class T>
struct Levels {
    typedef Factor<T> F;
    typedef std::conditional_t<PAIRED<F>, bf16, float> Wide;

    const char* data;
    const int64_t inputs;

    int64_t width() const { return (inputs + 1) / 2 * 2; }
    int64_t bytes() const { return PANEL * width(); }
    const char* panel(int64_t index) const { return data + index * bytes(); }

    LevelPanel<F> once(const char* panel, const char* ahead) const {
        return {reinterpret_cast<const int8_t*>(panel), ahead};
    }

    // The panel in words: several passes would widen it as often. Two `sides` are kept.
    const char* ready(const char* panel, int side) const {
        struct alignas(LINE) Line {
            char bytes[LINE];
        };
        static thread_local std::vector<Line> kept[2];
        std::vector<Line>& wide = kept[side];
        const int64_t depth = width() / NUMBERS<F>;
        wide.resize(depth * PANEL_BYTES / LINE);
        char* const to = wide.data()->bytes;
        constexpr int STEP = LevelPanel<F>::STEP;
        for (int64_t k = 0; k < depth; k += STEP)
            for (int64_t column = 0; column < PANEL; column += W) {
                Vector<F> factors[STEP][1];
                const char* from = panel + k * NUMBERS<F> * PANEL + column;
                widen_levels<F>(reinterpret_cast<const int8_t*>(from), factors);
                for (int s = 0; s < STEP; s++)
                    std::memcpy(to + (k + s) * PANEL_BYTES + column * 4, factors[s], 4 * W);
            }
        return to;
    }
    Panel<Wide, 1> share(const char* panel, const char* ahead, int64_t p, int64_t passes) const {
        return {panel, ahead + bytes() * p / passes, NUMBERS<F> * PANEL / passes};
    }
};

}  // namespace octavo
