// Writing keys and values into a cache, copying its blocks, and checking the indices first.
#include <algorithm>

#include "cell.h"
#include "octavo.h"

namespace octavo {
namespace {

constexpr int64_t SMALL = 4 * 1024;  // bytes to move that one thread does sooner than two

template <class T>
void write_kv(const Batch& batch, const Cells<T>& cells, Tokens key, Tokens value, int threads) {
    const int64_t dim = cells.head_dim, size = cells.block_size;
    const int64_t words = dim * int64_t(sizeof(T)) / 4;
    const bool alone = batch.num_tokens * cells.kv_heads * dim * int64_t(sizeof(T)) < SMALL;
#pragma omp parallel for num_threads(threads) schedule(static) if (!alone)
    for (int64_t t = 0; t < batch.num_tokens; t++) {
        int64_t block = batch.slots[t] / size, offset = batch.slots[t] % size;
        for (int64_t head = 0; head < cells.kv_heads; head++) {
            const char* k = reinterpret_cast<const char*>(key.at<T>(t) + head * dim);
            uint32_t* column = cells.keys(block, head) + offset;
            for (int64_t w = 0; w < words; w++) std::memcpy(column + w * size, k + w * 4, 4);
            const T* v = value.at<T>(t) + head * dim;
            std::memcpy(cells.values(block, head) + offset * dim, v, dim * sizeof(T));
        }
    }
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" {

int octavo_check(const Batch* batch, int64_t num_blocks) {
    const Batch& b = *batch;
    for (int64_t t = 0; t < b.num_tokens; t++)
        if (b.slots[t] < 0 || b.slots[t] >= num_blocks * b.block_size) return 1;
    if (b.kv_indptr[0] != 0 || b.qo_indptr[0] != 0) return 3;
    for (int64_t r = 0; r < b.num_rows; r++) {
        int64_t blocks = b.kv_indptr[r + 1] - b.kv_indptr[r];
        int64_t queries = b.qo_indptr[r + 1] - b.qo_indptr[r];
        int64_t last = b.kv_last_page_len[r];
        if (b.kv_indptr[r + 1] > b.num_indices) return 3;
        if (blocks < 0 || queries < 0 || last < 0 || last > b.block_size) return 3;
        if (queries > (blocks - 1) * b.block_size + last) return 3;
        for (int64_t i = b.kv_indptr[r]; i < b.kv_indptr[r + 1]; i++)
            if (b.kv_indices[i] < 0 || b.kv_indices[i] >= num_blocks) return 2;
    }
    return b.qo_indptr[b.num_rows] == b.num_tokens ? 0 : 3;
}

void octavo_write_kv(int type, const Batch* batch, char* cache, int64_t block_stride,
                     int64_t kv_heads, int64_t head_dim, const char* key, int64_t key_stride,
                     const char* value, int64_t value_stride, int threads) {
    auto run = [&](auto zero) {
        Cells<decltype(zero)> cells{cache, block_stride, kv_heads, batch->block_size, head_dim};
        Tokens keys{const_cast<char*>(key), key_stride};
        Tokens values{const_cast<char*>(value), value_stride};
        write_kv(*batch, cells, keys, values, threads);
    };
    type == 0 ? run(float{}) : run(bf16{});
}

void octavo_copy_blocks(char* cache, int64_t block_bytes, const int64_t* pairs, int64_t num_pairs,
                        int threads) {
    constexpr int64_t PIECE = 64 * 1024;  // few large blocks are shared out too
    const int64_t pieces = (block_bytes + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads(threads) schedule(static) if (num_pairs * block_bytes > SMALL)
    for (int64_t i = 0; i < num_pairs * pieces; i++) {
        const int64_t* pair = pairs + i / pieces * 2;
        int64_t at = i % pieces * PIECE;
        std::memcpy(cache + pair[1] * block_bytes + at, cache + pair[0] * block_bytes + at,
                    std::min(PIECE, block_bytes - at));
    }
}
}
