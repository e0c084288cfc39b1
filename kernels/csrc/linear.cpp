// out = x @ weight^T + bias, with the weight in panels of PANEL outputs.
//
// A panel is [words, PANEL] 32-bit words: one float32 each, or two bfloat16 of neighbouring inputs.
// A step of few rows takes as long as reading the weights does, so a panel is read once and in
// order, and while it is multiplied by all rows the one after it is asked for, evenly. An output
// is one chain of multiply-adds over the inputs (see `product.h`), whatever the rows beside it.
#include <algorithm>
#include <vector>

#include "octavo.h"
#include "product.h"

namespace octavo {
namespace {

constexpr int PANEL = 32;
constexpr int PANEL_BYTES = 4 * PANEL;  // a word of each output
constexpr int LINE = 64;                // bytes of a cache line
constexpr int C = 2;                    // vectors of outputs held in registers ...
constexpr int MOST = W == 16 ? 8 : 4;   // ... times at most so many rows
constexpr int64_t KEPT = 512 * 1024;    // bytes of x that stay in a cache over all panels
constexpr int64_t SMALL = 64 * 1024;    // multiply-adds that one thread does sooner than two

// One panel as a matrix of factors. With every word of it, LINES lines of what comes next are asked
// for, `step` bytes on.
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

// Rows of x as factors, `stride` of them apart.
template <class F>
struct Rows {
    const F* data;
    int64_t stride;
};

template <class T>
struct Linear {
    typedef Factor<T> F;
    static constexpr bool WIDENS = sizeof(F) / NUMBERS<F> > sizeof(T);  // x does not lie as factors

    const char* x;
    const int64_t x_stride, rows, inputs;
    const char* weight;
    const int64_t outputs;
    const T* bias;
    char* out;
    const int64_t out_stride;

    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }

    const char* panel(int64_t index) const {
        return weight + index * PANEL * inputs * int64_t(sizeof(T));
    }

    Rows<F> rows_of(int64_t begin, int64_t end, std::vector<float>& widened) const {
        const char* from = x + begin * x_stride;
        if constexpr (!WIDENS)
            return {reinterpret_cast<const F*>(from), x_stride / int64_t(sizeof(F))};
        widened.resize((end - begin) * inputs);
        for (int64_t r = 0; r < end - begin; r++) {
            const T* row = reinterpret_cast<const T*>(from + r * x_stride);
            for (int64_t i = 0; i < inputs; i++) widened[r * inputs + i] = to_float(row[i]);
        }
        return {reinterpret_cast<const F*>(widened.data()), inputs};
    }

    void write(float* sums, int64_t row, int64_t count, int64_t index) const {
        const int64_t first = index * PANEL, columns = std::min<int64_t>(PANEL, outputs - first);
        T added[PANEL] = {};
        if (bias) std::copy(bias + first, bias + first + columns, added);
        for (int64_t r = 0; r < count; r++, sums += PANEL) {
            T* to = reinterpret_cast<T*>(out + (row + r) * out_stride) + first;
            for (int c = 0; bias && c < PANEL; c += W)
                store(sums + c, load(sums + c) + load(added + c));
            T results[PANEL];
            round_all<PANEL>(results, sums);
            std::copy(results, results + columns, to);
        }
    }

    // R or fewer rows of one panel.
    template <int R = MOST, class B>
    void pass(Rows<F> a, int64_t count, const B& b, float* sums) const {
        if constexpr (R > 1)
            if (count < R) return pass<R - 1>(a, count, b, sums);
        for (int64_t column = 0; column < PANEL; column += C * W)
            product_tile<R, C>(a.data, a.stride, inputs / NUMBERS<F>, b, column, sums + column,
                               PANEL, false);
    }

    // Rows `begin` to `end`, which are `a`, of one panel, in passes of about as many rows each.
    void multiply(Rows<F> a, int64_t begin, int64_t end, int64_t index, int64_t next) const {
        const int64_t count = end - begin, passes = (count + MOST - 1) / MOST;
        const char *data = panel(index), *ahead = panel(next);
        float sums[MOST * PANEL];
        for (int64_t p = 0; p < passes; p++) {
            const int64_t first = count * p / passes, some = count * (p + 1) / passes - first;
            const Rows<F> part{a.data + first * a.stride, a.stride};
            if (passes == 1) {
                pass(part, some, Panel<T, PANEL_BYTES / LINE>{data, ahead, PANEL_BYTES}, sums);
            } else {
                const char* share = ahead + (panel(1) - panel(0)) * p / passes;
                pass(part, some, Panel<T, 1>{data, share, PANEL_BYTES / passes}, sums);
            }
            write(sums, begin + first, some, index);
        }
    }

    void run(int threads) const {
        const int64_t row_bytes = inputs * int64_t(sizeof(F)) / NUMBERS<F>;
        const int64_t most = std::max<int64_t>(MOST, KEPT / row_bytes);
        const int64_t blocks = (rows + most - 1) / most, items = blocks * panels();
        const bool small = rows * inputs * outputs < SMALL;
        const int team = small ? 1 : int(std::min<int64_t>(threads, items));
#pragma omp parallel num_threads(team) if (team > 1)
        {
            static thread_local std::vector<float> widened;
            Rows<F> a{};
            int64_t held = -1;
            // Panels side by side for each thread: the processor's own prefetching likes one long
            // piece. After a weight's last panel comes, in memory, most often the next weight.
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < items; i++) {
                const int64_t block = i / panels(), index = i % panels();
                const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
                if (block != held) a = rows_of(begin, end, widened);
                held = block;
                multiply(a, begin, end, index,
                         block + 1 < blocks && index + 1 == panels() ? 0 : index + 1);
            }
        }
    }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" void octavo_linear(int type, const char* x, int64_t x_stride, int64_t rows,
                              int64_t inputs, const char* weight, int64_t outputs,
                              const char* bias, char* out, int64_t out_stride, int threads) {
    auto run = [&](auto zero) {
        typedef decltype(zero) T;
        const T* added = reinterpret_cast<const T*>(bias);
        Linear<T>{x, x_stride, rows, inputs, weight, outputs, added, out, out_stride}.run(threads);
    };
    type == 0 ? run(float{}) : run(bf16{});
}
