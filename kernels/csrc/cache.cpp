// Copying a cache's blocks, and checking the indices of a batch first.
#include <algorithm>
#include <cstring>

#include "octavo.h"
#include "team.h"

namespace {

constexpr int64_t SMALL = 4 * 1024;  // bytes to move that one thread does sooner than two

}  // namespace

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

void octavo_copy_blocks(char* cache, int64_t block_bytes, const int64_t* pairs, int64_t num_pairs,
                        int threads) {
    constexpr int64_t PIECE = 64 * 1024;  // few large blocks are shared out too
    const int64_t pieces = (block_bytes + PIECE - 1) / PIECE;
    const bool small = num_pairs * block_bytes < SMALL;
    for_each(num_pairs * pieces, small, threads, [&](int64_t i) {
        const int64_t* pair = pairs + i / pieces * 2;
        int64_t at = i % pieces * PIECE;
        std::memcpy(cache + pair[1] * block_bytes + at, cache + pair[0] * block_bytes + at,
                    std::min(PIECE, block_bytes - at));
    });
}
}
