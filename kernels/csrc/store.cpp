// A step's keys and values on their way into the cache, turned by their positions or as they are.
#include "cell.h"
#include "octavo.h"
#include "rows.h"
#include "team.h"

namespace octavo {
namespace {

constexpr int64_t SMALL_COPY = 4 * 1024;   // bytes to move, and ...
constexpr int64_t SMALL_TURN = 16 * 1024;  // ... elements to turn that one thread does sooner

// Turns one head, the first half of its dimensions with the second.
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
struct Store {
    const Batch& batch;
    const Cells<T> cells;
    const Tokens key, value;

    void write(int64_t t) const {
        const int64_t dim = cells.head_dim, size = cells.block_size;
        const int64_t words = dim * int64_t(sizeof(T)) / 4;
        const int64_t block = batch.slots[t] / size, offset = batch.slots[t] % size;
        for (int64_t head = 0; head < cells.kv_heads; head++) {
            const char* k = reinterpret_cast<const char*>(key.at<T>(t) + head * dim);
            uint32_t* column = cells.keys(block, head) + offset;
            for (int64_t w = 0; w < words; w++) std::memcpy(column + w * size, k + w * 4, 4);
            const T* v = value.at<T>(t) + head * dim;
            std::memcpy(cells.values(block, head) + offset * dim, v, dim * sizeof(T));
        }
    }

    void turn_heads(Tokens x, int64_t heads, int64_t t, const float* cosine) const {
        const int64_t dim = cells.head_dim;
        for (int64_t h = 0; h < heads; h++)
            turn(x.at<T>(t) + h * dim, cosine, cosine + dim / 2, dim / 2);
    }

    void write_all(int threads) const {
        const int64_t bytes = batch.num_tokens * cells.kv_heads * cells.head_dim * sizeof(T);
        for_each(batch.num_tokens, bytes < SMALL_COPY, threads, [&](int64_t t) { write(t); });
    }

    void turn_and_write_all(Tokens query, int64_t heads, const float* cos_sin,
                            const int32_t* positions, int threads) const {
        const int64_t dim = cells.head_dim;
        const int64_t elements = batch.num_tokens * (heads + cells.kv_heads) * dim;
        for_each(batch.num_tokens, elements < SMALL_TURN, threads, [&](int64_t t) {
            const float* cosine = cos_sin + int64_t(positions[t]) * dim;
            turn_heads(query, heads, t, cosine);
            turn_heads(key, cells.kv_heads, t, cosine);
            write(t);
        });
    }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" {

void octavo_write_kv(int type, const Batch* batch, char* cache, int64_t block_stride,
                     int64_t kv_heads, int64_t head_dim, const char* key, int64_t key_stride,
                     const char* value, int64_t value_stride, int threads) {
    auto run = [&](auto zero) {
        typedef decltype(zero) T;
        Cells<T> cells{cache, block_stride, kv_heads, batch->block_size, head_dim};
        Tokens keys{const_cast<char*>(key), key_stride};
        Tokens values{const_cast<char*>(value), value_stride};
        Store<T>{*batch, cells, keys, values}.write_all(threads);
    };
    type == 0 ? run(float{}) : run(bf16{});
}

int octavo_rotary_write_kv(int type, const Batch* batch, char* cache, int64_t block_stride,
                           int64_t kv_heads, int64_t head_dim, char* query, int64_t query_stride,
                           int64_t heads, char* key, int64_t key_stride, const char* value,
                           int64_t value_stride, const float* cos_sin, int64_t max_len,
                           const int32_t* positions, int threads) {
    for (int64_t t = 0; t < batch->num_tokens; t++)
        if (positions[t] < 0 || positions[t] >= max_len) return 1;
    auto run = [&](auto zero) {
        typedef decltype(zero) T;
        Cells<T> cells{cache, block_stride, kv_heads, batch->block_size, head_dim};
        Tokens values{const_cast<char*>(value), value_stride};
        Store<T>{*batch, cells, {key, key_stride}, values}.turn_and_write_all(
            {query, query_stride}, heads, cos_sin, positions, threads);
    };
    type == 0 ? run(float{}) : run(bf16{});
    return 0;
}
}
