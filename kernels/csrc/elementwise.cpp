// A layer's small steps between its matrix products: norms and gated SiLU.
// Everything is computed in float32; rows are independent.

#include "octavo.h"
#include "rows.h"
#include "silu.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int64_t SMALL = 32 * 1024;  // elements that one thread does sooner than two

// Writes weight * x / the root mean square of x, of the row that `take(i, count)` yields piece by
// piece and that then lies at `x`.
template <class T, class Take>
ALWAYS_INLINE void normalise(const T* x, const T* weight, int64_t width, float eps, T* out,
                             const Take& take) {
    vf squares[4] = {};  // several: a chain of so many sums would take longer than all else
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
        for (int n = 0; n < 4; n++) {
            vf v = take(i + n * W, std::integral_constant<int, W>{});
            squares[n] += v * v;
        }
    for_vectors_from(i, width, [&](int64_t i, auto count) {
        vf v = take(i, count);
        squares[0] += v * v;
    });
    const float sum = sum_of(squares[0] + squares[1] + (squares[2] + squares[3]));
    vf factor = splat(1.0f / std::sqrt(sum / float(width) + eps));
    // Rounded before the weight, as models of the Llama family are trained and published.
    for_vectors(width, [&](int64_t i, auto count) {
        vf v = rounded<T>(load_some(x + i, count) * factor);
        store_some(out + i, v * load_some(weight + i, count), count);
    });
}

template <class T>
void rms_norm(const char* x, int64_t token_stride, int64_t head_stride, int64_t tokens,
              int64_t heads, int64_t width, const char* weight, float eps, char* out,
              int64_t out_token_stride, int64_t out_head_stride, int threads) {
    for_each(tokens * heads, tokens * heads * width < SMALL, threads, [&](int64_t i) {
        int64_t t = i / heads, h = i % heads;
        const T* row = row_of<T>(x, t * token_stride + h * head_stride);
        normalise(row, row_of<T>(weight, 0), width, eps,
                  row_of<T>(out, t * out_token_stride + h * out_head_stride),
                  [&](int64_t i, auto count) { return load_some(row + i, count); });
    });
}

template <class T>
void add_rms_norm(const char* x, int64_t x_stride, char* residual, int64_t residual_stride,
                  int64_t rows, int64_t width, const char* weight, float eps, char* out,
                  int64_t out_stride, int threads) {
    for_each(rows, rows * width < SMALL, threads, [&](int64_t r) {
        const T* more = row_of<T>(x, r * x_stride);
        T* sum = row_of<T>(residual, r * residual_stride);
        normalise(sum, row_of<T>(weight, 0), width, eps, row_of<T>(out, r * out_stride),
                  [&](int64_t i, auto count) {
                      vf v = rounded<T>(load_some(sum + i, count) + load_some(more + i, count));
                      store_some(sum + i, v, count);
                      return v;
                  });
    });
}

template <class T>
void silu_and_mul(const char* gate_up, int64_t in_stride, char* out, int64_t out_stride,
                  int64_t rows, int64_t width, int threads) {
    for_each(rows, rows * width < SMALL, threads, [&](int64_t r) {
        const T* gate = row_of<T>(gate_up, r * in_stride);
        const T* up = gate + width;
        T* to = row_of<T>(out, r * out_stride);
        for_vectors(width, [&](int64_t i, auto count) {
            vf x = load_some(gate + i, count);
            store_some(to + i, silu<T>(x) * load_some(up + i, count), count);
        });
    });
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" {

void octavo_rms_norm(int type, const char* x, int64_t token_stride, int64_t head_stride,
                     int64_t tokens, int64_t heads, int64_t width, const char* weight, float eps,
                     char* out, int64_t out_token_stride, int64_t out_head_stride, int threads) {
    auto run = type == 0 ? rms_norm<float> : rms_norm<bf16>;
    run(x, token_stride, head_stride, tokens, heads, width, weight, eps, out, out_token_stride,
        out_head_stride, threads);
}

void octavo_add_rms_norm(int type, const char* x, int64_t x_stride, char* residual,
                         int64_t residual_stride, int64_t rows, int64_t width, const char* weight,
                         float eps, char* out, int64_t out_stride, int threads) {
    auto run = type == 0 ? add_rms_norm<float> : add_rms_norm<bf16>;
    run(x, x_stride, residual, residual_stride, rows, width, weight, eps, out, out_stride, threads);
}

void octavo_silu_and_mul(int type, const char* gate_up, int64_t in_stride, char* out,
                         int64_t out_stride, int64_t rows, int64_t width, int threads) {
    auto run = type == 0 ? silu_and_mul<float> : silu_and_mul<bf16>;
    run(gate_up, in_stride, out, out_stride, rows, width, threads);
}
}
