// out = x @ weight^T + bias, with the weight in panels of PANEL outputs: see `panel.h`.
//
// Or gated: out = silu(gate) * up, where those are the two halves of the outputs. Then panels of
// gates and of what they gate lie by turns, so that both are at hand when they are multiplied.
//
// An output is one chain of multiply-adds over the inputs (see `product.h`), whatever the rows
// beside it, and whether an int8 panel is widened in passing or beforehand.
#include <algorithm>
#include <vector>

#include "octavo.h"
#include "panel.h"
#include "silu.h"
#include "team.h"
#include "tiles.h"

namespace octavo {
namespace {

constexpr int C = 2;                   // vectors of outputs held in registers ...
constexpr int MOST = W == 16 ? 8 : 4;  // ... times at most so many rows
constexpr int64_t KEPT = 512 * 1024;   // bytes of x that stay in a cache over all panels
constexpr int64_t SMALL = 64 * 1024;   // multiply-adds that one thread does sooner than two

// Rows of x as factors, `stride` of them apart.
template <class F>
struct Rows {
    const F* data;
    int64_t stride;
};

template <class T, class Weight>
struct Linear {
    typedef Factor<T> F;
    typedef std::conditional_t<PAIRED<F>, bf16, float> Number;  // that factors consist of
    static constexpr bool COPIES = !std::is_same_v<Number, T>;  // x does not lie as factors

    const char* x;
    const int64_t x_stride, rows, inputs;
    const Weight weight;
    const float* scales;  // that sums are multiplied by, or null
    const int64_t outputs;
    const T* bias;
    char* out;
    const int64_t out_stride;
    const int sides;  // 2 if gated: neighbouring panels that make up a result

    int64_t results() const { return (outputs + PANEL - 1) / PANEL / sides; }
    const char* panel(int64_t result, int side) const {
        return weight.panel(result * sides + side);
    }

    // Where they lie if a panel's inputs can be read there, else copied, with zeros behind them.
    Rows<F> rows_of(int64_t begin, int64_t end, std::vector<char>& copied) const {
        const char* from = x + begin * x_stride;
        const int64_t width = weight.width();
        if constexpr (!COPIES)
            if (width == inputs && x_stride % int64_t(sizeof(F)) == 0)
                return {reinterpret_cast<const F*>(from), x_stride / int64_t(sizeof(F))};
        copied.resize((end - begin) * width * sizeof(Number));
        Number* to = reinterpret_cast<Number*>(copied.data());
        for (int64_t r = 0; r < end - begin; r++, to += width) {
            const T* row = reinterpret_cast<const T*>(from + r * x_stride);
            for (int64_t i = 0; i < inputs; i++)
                if constexpr (COPIES)
                    to[i] = to_float(row[i]);
                else
                    to[i] = row[i];
            std::fill(to + inputs, to + width, Number{});
        }
        return {reinterpret_cast<const F*>(copied.data()), width / NUMBERS<F>};
    }

    // Scales sums of PANEL outputs from `first` on, and adds their bias. Never inlined: whether
    // both are one instruction, which rounds once, must not depend on the place of the call.
    __attribute__((noinline)) void complete(float* sums, int64_t count, int64_t first) const {
        if (!scales && !bias) return;
        const int64_t columns = std::min<int64_t>(PANEL, outputs - first);
        float scaled[PANEL] = {};
        if (scales) std::copy(scales + first, scales + first + columns, scaled);
        T added[PANEL] = {};
        if (bias) std::copy(bias + first, bias + first + columns, added);
        for (int64_t r = 0; r < count; r++, sums += PANEL) {
            for (int c = 0; scales && c < PANEL; c += W)
                store(sums + c, load(sums + c) * load(scaled + c));
            for (int c = 0; bias && c < PANEL; c += W)
                store(sums + c, load(sums + c) + load(added + c));
        }
    }

    // `count` rows of a result, from `row` on.
    void write(float (*sums)[TILE_ROWS * PANEL], int64_t row, int64_t count, int64_t index) const {
        const int64_t first = index * PANEL, columns = std::min<int64_t>(PANEL, outputs - first);
        for (int side = 0; side < sides; side++)
            complete(sums[side], count, first + side * outputs / 2);
        for (int64_t r = 0; r < count; r++) {
            T* to = reinterpret_cast<T*>(out + (row + r) * out_stride) + first;
            if (sides == 1 && columns == PANEL) {
                round_all<PANEL>(to, sums[0] + r * PANEL);
                continue;
            }
            T results[2][PANEL];
            for (int side = 0; side < sides; side++)
                round_all<PANEL>(results[side], sums[side] + r * PANEL);
            if (sides == 1)
                std::copy(results[0], results[0] + columns, to);
            else
                for (int c = 0; c < PANEL; c += W)
                    store(to + c, silu<T>(load(results[0] + c)) * load(results[1] + c));
        }
    }

    // R or fewer rows of one panel.
    template <int R = MOST, class B>
    void pass(Rows<F> a, int64_t count, const B& b, float* sums) const {
        if constexpr (R > 1)
            if (count < R) return pass<R - 1>(a, count, b, sums);
        const int64_t depth = weight.width() / NUMBERS<F>;
        for (int64_t column = 0; column < PANEL; column += C * W)
            product_tile<R, C>(a.data, a.stride, depth, b, column, sums + column, PANEL, false);
    }

    // Rows `begin` to `end`, which are `a`, of one result, in passes of about as many rows each.
    void multiply(Rows<F> a, int64_t begin, int64_t end, int64_t index, int64_t next) const {
        const int64_t count = end - begin, passes = (count + MOST - 1) / MOST;
        const char* panels[2];
        for (int side = 0; side < sides; side++) {
            panels[side] = panel(index, side);
            if (passes > 1) panels[side] = weight.ready(panels[side], side);
        }
        float sums[2][TILE_ROWS * PANEL];
        for (int64_t p = 0; p < passes; p++) {
            const int64_t first = count * p / passes, some = count * (p + 1) / passes - first;
            const Rows<F> part{a.data + first * a.stride, a.stride};
            for (int side = 0; side < sides; side++) {
                const char* ahead = panel(next, side);
                if (passes == 1)
                    pass(part, some, weight.once(panels[side], ahead), sums[side]);
                else
                    pass(part, some, weight.share(panels[side], ahead, p, passes), sums[side]);
            }
            write(sums, begin + first, some, index);
        }
    }

    // Whether the processor's tiles do it, for any number of rows: their sums run in an order of
    // their own.
    bool is_tiled() const {
        return HAS_TILES && PAIRED<F> && weight.width() % TILE_INPUTS == 0 && tiles_work();
    }

    // As `multiply`, with tiles.
    void multiply_tiles(Rows<F> a, int64_t begin, int64_t end, int64_t index, int64_t next,
                        Tiles& tiles) const {
        const int64_t count = end - begin, passes = (count + TILE_ROWS - 1) / TILE_ROWS;
        const int64_t share = weight.bytes() / passes, steps = weight.width() / TILE_INPUTS;
        const char* panels[2];
        for (int side = 0; side < sides; side++)
            panels[side] = weight.ready(panel(index, side), side);
        float sums[2][TILE_ROWS * PANEL];
        for (int64_t p = 0; p < passes; p++) {
            const int64_t first = p * TILE_ROWS, some = std::min<int64_t>(TILE_ROWS, count - first);
            for (int side = 0; side < sides; side++)
                tiles.product(a.data + first * a.stride, a.stride * int64_t(sizeof(F)), some, steps,
                              PanelTiles{panels[side], panel(next, side) + p * share, share / steps},
                              sums[side], PANEL * int64_t(sizeof(float)), false);
            write(sums, begin + first, some, index);
        }
    }

    void run(int threads) const {
        const bool tiled = is_tiled();
        const int64_t row_bytes = weight.width() * int64_t(sizeof(Number));
        const int64_t most = std::max<int64_t>(MOST, KEPT / row_bytes);
        const int64_t blocks = (rows + most - 1) / most, items = blocks * results();
        const bool small = rows * inputs * outputs < SMALL;
        share_out(items, small ? 1 : threads, [&](Claims& claims) {
            static thread_local std::vector<char> copied;
            Tiles tiles;
            Rows<F> a{};
            int64_t held = -1;
            // A thread's panels lie side by side: the processor's own prefetching likes one long
            // piece. After a weight's last panel comes, in memory, most often the next weight.
            for (int64_t i; (i = claims.next()) >= 0;) {
                const int64_t block = i / results(), index = i % results();
                const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
                if (block != held) a = rows_of(begin, end, copied);
                held = block;
                const int64_t next = block + 1 < blocks && index + 1 == results() ? 0 : index + 1;
                if (tiled)
                    multiply_tiles(a, begin, end, index, next, tiles);
                else
                    multiply(a, begin, end, index, next);
            }
        });
    }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" int octavo_has_tiles() { return HAS_TILES && tiles_work(); }

extern "C" void octavo_linear(int type, const char* x, int64_t x_stride, int64_t rows,
                              int64_t inputs, const char* weight, int64_t outputs,
                              const char* bias, const float* scales, int gated, char* out,
                              int64_t out_stride, int threads) {
    auto multiply = [&](auto zero, auto panels) {
        typedef decltype(zero) T;
        const T* added = reinterpret_cast<const T*>(bias);
        Linear<T, decltype(panels)>{x,       x_stride, rows,  inputs, panels,
                                    scales,  outputs,  added, out,    out_stride, gated ? 2 : 1}
            .run(threads);
    };
    auto run = [&](auto zero) {
        typedef decltype(zero) T;
        if (scales)
            multiply(zero, Levels<T>{weight, inputs});
        else
            multiply(zero, Words<T>{weight, inputs});
    };
    type == 0 ? run(float{}) : run(bf16{});
}
