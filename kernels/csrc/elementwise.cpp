// A layer's small steps between its matrix products: norms, rotary embedding, gated SiLU.
// Everything is computed in float32; rows are independent.
#include <algorithm>

#include "octavo.h"
#include "simd.h"

namespace octavo {
namespace {

constexpr int64_t SMALL = 32 * 1024;  // elements that one thread does sooner than two

template <class T>
const T* row_of(const char* data, int64_t offset) {
    return reinterpret_cast<const T*>(data + offset);
}
template <class T>
T* row_of(char* data, int64_t offset) {
    return reinterpret_cast<T*>(data + offset);
}

// Calls `body(offset, count)` over a row in vectors; the last one may be shorter.
// `count` is W but there.
template <class Body>
inline void for_vectors(int64_t width, Body body) {
    int64_t i = 0;
    for (; i + W <= width; i += W) body(i, std::integral_constant<int, W>{});
    if (i < width) body(i, int(width - i));
}

template <class T, class Count>
inline vf load_some(const T* from, Count count) {
    if constexpr (!std::is_same_v<Count, int>) {
        return load(from);
    } else {
        T padded[W] = {};
        std::memcpy(padded, from, count * sizeof(T));
        return load(padded);
    }
}

template <class T, class Count>
inline void store_some(T* to, vf x, Count count) {
    if constexpr (!std::is_same_v<Count, int>) {
        store(to, x);
    } else {
        T padded[W];
        store(padded, x);
        std::memcpy(to, padded, count * sizeof(T));
    }
}

// x as it reads after a stay in T.
template <class T>
inline vf rounded(vf x) {
    if constexpr (std::is_same_v<T, float>) return x;
    T kept[W];
    store(kept, x);
    return load(kept);
}

template <class T>
void normalise(const T* x, const T* weight, int64_t width, float eps, T* out) {
    vf squares{};
    for_vectors(width, [&](int64_t i, auto count) {
        vf v = load_some(x + i, count);
        squares += v * v;
    });
    vf factor = splat(1.0f / std::sqrt(sum_of(squares) / float(width) + eps));
    // Rounded before the weight, as models of the Llama family are trained and published.
    for_vectors(width, [&](int64_t i, auto count) {
        vf v = rounded<T>(load_some(x + i, count) * factor);
        store_some(out + i, v * load_some(weight + i, count), count);
    });
}

template <class T>
void turn(T* x, const float* cosine, const float* sine, int64_t half) {
    for_vectors(half, [&](int64_t i, auto count) {
        vf a = load_some(x + i, count), b = load_some(x + half + i, count);
        vf c = load_some(cosine + i, count), s = load_some(sine + i, count);
        store_some(x + i, a * c - b * s, count);
        store_some(x + half + i, b * c + a * s, count);
    });
}

template <class T>
void rms_norm(const char* x, int64_t token_stride, int64_t head_stride, int64_t tokens,
              int64_t heads, int64_t width, const char* weight, float eps, char* out,
              int64_t out_token_stride, int64_t out_head_stride, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (tokens * heads * width > SMALL)
    for (int64_t i = 0; i < tokens * heads; i++) {
        int64_t t = i / heads, h = i % heads;
        normalise(row_of<T>(x, t * token_stride + h * head_stride), row_of<T>(weight, 0), width,
                  eps, row_of<T>(out, t * out_token_stride + h * out_head_stride));
    }
}

template <class T>
void add_rms_norm(const char* x, int64_t x_stride, char* residual, int64_t residual_stride,
                  int64_t rows, int64_t width, const char* weight, float eps, char* out,
                  int64_t out_stride, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const T* more = row_of<T>(x, r * x_stride);
        T* sum = row_of<T>(residual, r * residual_stride);
        for_vectors(width, [&](int64_t i, auto count) {
            store_some(sum + i, load_some(sum + i, count) + load_some(more + i, count), count);
        });
        normalise(sum, row_of<T>(weight, 0), width, eps, row_of<T>(out, r * out_stride));
    }
}

template <class T>
void rotary(char* query, int64_t query_stride, int64_t heads, char* key, int64_t key_stride,
            int64_t kv_heads, int64_t dim, const float* cos_sin, const int32_t* positions, int64_t num_tokens, int threads) {
    const int64_t elements = num_tokens * (heads + kv_heads) * dim;
#pragma omp parallel for num_threads(threads) schedule(static) if (elements > SMALL)
    for (int64_t t = 0; t < num_tokens; t++) {
        const float* cosine = cos_sin + int64_t(positions[t]) * dim;
        const float* sine = cosine + dim / 2;
        for (int64_t h = 0; h < heads; h++)
            turn(row_of<T>(query, t * query_stride) + h * dim, cosine, sine, dim / 2);
        for (int64_t h = 0; h < kv_heads; h++)
            turn(row_of<T>(key, t * key_stride) + h * dim, cosine, sine, dim / 2);
    }
}

template <class T>
void silu_and_mul(const char* gate_up, int64_t in_stride, char* out, int64_t out_stride,
                  int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const T* gate = row_of<T>(gate_up, r * in_stride);
        const T* up = gate + width;
        T* to = row_of<T>(out, r * out_stride);
        for_vectors(width, [&](int64_t i, auto count) {
            vf x = load_some(gate + i, count);
            vf silu = x / (exp2(x * -1.44269504f) + 1.0f);
            store_some(to + i, silu * load_some(up + i, count), count);
        });
    }
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

int octavo_rotary(int type, char* query, int64_t query_stride, int64_t heads, char* key,
                  int64_t key_stride, int64_t kv_heads, int64_t head_dim, const float* cos_sin,
                  int64_t max_len, const int32_t* positions, int64_t num_tokens, int threads) {
    for (int64_t t = 0; t < num_tokens; t++)
        if (positions[t] < 0 || positions[t] >= max_len) return 1;
    auto run = type == 0 ? rotary<float> : rotary<bf16>;
    run(query, query_stride, heads, key, key_stride, kv_heads, head_dim, cos_sin, positions,
        num_tokens, threads);
    return 0;
}

void octavo_silu_and_mul(int type, const char* gate_up, int64_t in_stride, char* out,
                         int64_t out_stride, int64_t rows, int64_t width, int threads) {
    auto run = type == 0 ? silu_and_mul<float> : silu_and_mul<bf16>;
    run(gate_up, in_stride, out, out_stride, rows, width, threads);
}
}
