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
#include "panel_tiles.h"
#include "silu.h"
#include "team.h"
#include "tiles.h"

namespace octavo {
namespace {

constexpr int C = 2;                   // vectors of outputs held in registers ...
constexpr int MOST = W == 16 ? 8 : 4;  // ... times at most so many rows
constexpr int64_t KEPT = 1024 * 1024;  // bytes of x that stay in a cache over all panels
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
    const bool x_ordered, out_ordered;  // as `TiledOrder` has it

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

    // `count` rows of a side's sums, from `row` on, no more than lie together: gates to `gates`, PANEL
    // of each row, where they wait for what they gate; all else to the output.
    void write(float* sums, int64_t row, int64_t count, int64_t index, int side, T* gates) const {
        const int64_t first = index * PANEL, columns = std::min<int64_t>(PANEL, outputs - first);
        if (scales || bias) complete(sums, count, first + side * outputs / 2);
        char* place = out + row * out_stride + first * int64_t(sizeof(T));
        if (out_ordered) place = out + TiledOrder{rows, results()}.at(row, index);
        const int64_t step = out_ordered ? TiledOrder::LINE_BYTES : out_stride;
        for (int64_t r = 0; r < count; r++, sums += PANEL, gates += PANEL, place += step) {
            T* const to = reinterpret_cast<T*>(place);
            T rounded[PANEL];
            if (side + 1 < sides) {
                round_all<PANEL>(gates, sums);
            } else if (sides == 2) {
                round_all<PANEL>(rounded, sums);
                for (int c = 0; c < PANEL; c += W)
                    store(to + c, silu<T>(load(gates + c)) * load(rounded + c));
            } else if (columns == PANEL) {
                round_all<PANEL>(to, sums);
            } else {
                round_all<PANEL>(rounded, sums);
                std::copy(rounded, rounded + columns, to);
            }
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
        float sums[MOST * PANEL];
        T gates[MOST * PANEL];
        for (int64_t p = 0; p < passes; p++) {
            const int64_t first = count * p / passes, some = count * (p + 1) / passes - first;
            const Rows<F> part{a.data + first * a.stride, a.stride};
            for (int side = 0; side < sides; side++) {
                const char* ahead = panel(next, side);
                if (passes == 1)
                    pass(part, some, weight.once(panels[side], ahead), sums);
                else
                    pass(part, some, weight.share(panels[side], ahead, p, passes), sums);
                write(sums, begin + first, some, index, side, gates);
            }
        }
    }

    // Whether the processor's tiles do it, for any number of rows: their sums run in an order of
    // their own.
    bool is_tiled() const {
        return HAS_TILES && PAIRED<F> && weight.width() % TILE_INPUTS == 0 && tiles_work();
    }

    // A thread's products by tiles. The sums of one pass are written while the next one multiplies:
    // stores to lines that another core has take long.
    class Passes {
    public:
        // Of blocks of at most `most` rows.
        Passes(const Linear& linear, int64_t most) : linear(linear) {
            if (linear.sides == 2) gates.resize(most * PANEL);
        }

        // Rows `begin` to `end` of one result.
        void multiply(int64_t begin, int64_t end, int64_t index, int64_t next) {
            const Weight& weight = linear.weight;
            const int64_t count = end - begin, passes = (count + TILE_ROWS - 1) / TILE_ROWS;
            const int64_t share = weight.bytes() / passes;
            const int64_t steps = weight.width() / TILE_INPUTS;
            const bool in_order = linear.x_ordered || passes > 1;
            const char* const rows = in_order ? ordered(begin, end, steps) : row(begin);
            for (int side = 0; side < linear.sides; side++) {
                const char* panel = weight.ready(linear.panel(index, side), side);
                const char* ahead =
                    side + 1 < linear.sides ? linear.panel(index, side + 1) : linear.panel(next, 0);
                for (int64_t p = 0; p < passes; p++) {
                    const int64_t first = p * TILE_ROWS;
                    const int64_t some = std::min<int64_t>(TILE_ROWS, count - first);
                    const PanelTiles<Passes> right{panel, ahead + p * share, share / steps,
                                                   passes > 1 ? STAYING : 0, *this};
                    float* const to = sums[turn];
                    if (in_order)
                        tiles.product(ordered_tiles(rows, first, some, steps), some, steps, right,
                                      to, SUMS_STRIDE, false);
                    else
                        tiles.product(RowTiles{rows, linear.x_stride}, some, steps, right, to,
                                      SUMS_STRIDE, false);
                    finish();
                    waiting = {to, begin + first, some, index, side, gates.data() + first * PANEL};
                    turn = 1 - turn;
                }
            }
        }

        // Writes a few of the last pass's rows.
        ALWAYS_INLINE void operator()() { write(AT_ONCE); }

        void finish() { write(waiting.count); }

    private:
        static constexpr int64_t AT_ONCE = 2;
        static constexpr int64_t SUMS_STRIDE = PANEL * int64_t(sizeof(float));

        // Of the last pass, what is not yet written.
        struct Waiting {
            float* sums;
            int64_t row, count, index;
            int side;
            T* gates;
        };

        ALWAYS_INLINE void write(int64_t most) {
            const int64_t some = std::min(most, waiting.count);
            if (some == 0) return;
            linear.write(waiting.sums, waiting.row, some, waiting.index, waiting.side, waiting.gates);
            waiting.sums += some * PANEL, waiting.gates += some * PANEL;
            waiting.row += some, waiting.count -= some;
        }

        const char* row(int64_t index) const { return linear.x + index * linear.x_stride; }

        // Rows `begin` to `end` as OrderedTiles.
        const char* ordered(int64_t begin, int64_t end, int64_t steps) {
            if (linear.x_ordered) return linear.x + TiledOrder{linear.rows, steps}.at(begin, 0);
            if (held != begin) copied = copies.copy(row(begin), linear.x_stride, {end - begin, steps});
            held = begin;
            return copied;
        }

        const Linear& linear;
        Tiles tiles;
        int64_t held = -1;  // the first row of ...
        const char* copied = nullptr;
        Waiting waiting{};
        int turn = 0;
        alignas(LINE) float sums[2][TILE_ROWS * PANEL];
        static inline thread_local OrderedRows copies;
        static inline thread_local std::vector<T> gates;
    };

    // The row that a block begins with, a multiple of TILE_ROWS.
    int64_t bound(int64_t block, int64_t blocks) const {
        return std::min(rows, (rows + TILE_ROWS - 1) / TILE_ROWS * block / blocks * TILE_ROWS);
    }

    // Calls `body` for each block of rows and result that `claims` gives, and the result after it.
    // A thread's panels lie side by side: the processor's own prefetching likes one long piece. After
    // a weight's last panel comes, in memory, most often the next weight.
    template <class Body>
    void each(Claims& claims, int64_t blocks, const Body& body) const {
        for (int64_t i; (i = claims.next()) >= 0;) {
            const int64_t block = i / results(), index = i % results();
            const int64_t next = block + 1 < blocks && index + 1 == results() ? 0 : index + 1;
            body(bound(block, blocks), bound(block + 1, blocks), index, next);
        }
    }

    void run(int threads) const {
        const bool tiled = is_tiled();
        const int64_t row_bytes = weight.width() * int64_t(sizeof(Number));
        const int64_t most = std::max<int64_t>(TILE_ROWS, KEPT / row_bytes);
        const int64_t blocks = (rows + most - 1) / most, items = blocks * results();
        const bool small = rows * inputs * outputs < SMALL;
        share_out(items, small ? 1 : threads, [&](Claims& claims) {
            if (tiled) {
                Passes passes(*this, most);
                each(claims, blocks, [&](int64_t begin, int64_t end, int64_t index, int64_t next) {
                    passes.multiply(begin, end, index, next);
                });
                passes.finish();
                return;
            }
            static thread_local std::vector<char> copied;
            Rows<F> a{};
            int64_t held = -1;
            each(claims, blocks, [&](int64_t begin, int64_t end, int64_t index, int64_t next) {
                if (begin != held) a = rows_of(begin, end, copied);
                held = begin;
                multiply(a, begin, end, index, next);
            });
        });
    }
};

// Whether rows that only products read lie as `TiledOrder` has it.
template <class T>
bool is_ordered(int64_t rows, int64_t width) {
    return HAS_TILES && PAIRED<Factor<T>> && rows > TILE_ROWS && width % PANEL == 0 && tiles_work();
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" int octavo_has_tiles() { return HAS_TILES && tiles_work(); }

extern "C" void octavo_linear(int type, const char* x, int64_t x_stride, int64_t rows,
                              int64_t inputs, const char* weight, int64_t outputs,
                              const char* bias, const float* scales, int gated, int x_own,
                              int out_own, char* out, int64_t out_stride, int threads) {
    auto multiply = [&](auto zero, auto panels) {
        typedef decltype(zero) T;
        const T* added = reinterpret_cast<const T*>(bias);
        const int sides = gated ? 2 : 1;
        const bool x_ordered = x_own && is_ordered<T>(rows, inputs);
        const bool out_ordered = out_own && is_ordered<T>(rows, outputs / sides);
        Linear<T, decltype(panels)>{x,     x_stride, rows,       inputs, panels,    scales,     outputs,
                                    added, out,      out_stride, sides,  x_ordered, out_ordered}
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
