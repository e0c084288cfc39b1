// How a batch's attention is cut into items of work that threads take one by one.
//
// An item is up to QUERY_ROWS (query, head) pairs of one row, with some KV heads, over some of the
// row's splits. A split is SPLIT keys at an absolute position. No result depends on the cut.
#pragma once

#include <algorithm>
#include <vector>

#include "octavo.h"
#include "softmax.h"

namespace octavo {

constexpr int64_t SPLIT = 512;
constexpr int64_t QUERY_ROWS = HAS_TILES ? 384 : 60;  // a multiple of 2 * GROUP_ROWS or of ROWS
constexpr int64_t PER_THREAD = 4;    // items that a thread should have at least
constexpr int64_t SMALL = 200'000;   // products that one thread does sooner than two

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t queries_of(const Batch& batch, int64_t row) {
    return batch.qo_indptr[row + 1] - batch.qo_indptr[row];
}

// The context position of a row's first query.
inline int64_t origin_of(const Batch& batch, int64_t row) {
    int64_t blocks = batch.kv_indptr[row + 1] - batch.kv_indptr[row];
    int64_t context = (blocks - 1) * batch.block_size + batch.kv_last_page_len[row];
    return context - queries_of(batch, row);
}

struct Item {
    int64_t row;
    int64_t query;  // the first, counted within the row
    int64_t queries;
    int64_t head;  // the first KV head
    int64_t heads;
    int64_t begin;    // first key, a multiple of SPLIT
    int64_t end;      // past the last key that the last query sees
    int64_t partial;  // where in `partials` the result goes, in floats; -1: to the output
};

// Kept from call to call, to spare allocations.
struct Plan {
    std::vector<Item> items;
    std::vector<Item> merges;  // whose splits are items of their own, one after the other
    std::vector<float> partials;
    int64_t work;  // products of a query's and a key's element

    // `group` query heads share a KV head; `width` is head_dim in whole vectors.
    void make(const Batch& batch, int64_t kv_heads, int64_t group, int64_t width, int threads) {
        items.clear();
        merges.clear();
        const int64_t tile = std::max<int64_t>(1, QUERY_ROWS / group);
        int64_t room = 0, units = 0;
        for (int64_t row = 0; row < batch.num_rows; row++)
            units += divide_up(origin_of(batch, row) + queries_of(batch, row), SPLIT);
        const bool plenty = units >= PER_THREAD * threads;
        for (int64_t row = 0; row < batch.num_rows; row++) {
            const int64_t queries = queries_of(batch, row), origin = origin_of(batch, row);
            // A block's heads lie side by side: one thread reads them all if others have enough
            // to do and the queries are few.
            const bool side_by_side = plenty && queries * group * kv_heads <= QUERY_ROWS;
            const int64_t heads = side_by_side ? kv_heads : 1;
            // The longest tiles first, so that the threads end together.
            for (int64_t t = divide_up(queries, tile) - 1; t >= 0; t--)
                for (int64_t head = 0; head < kv_heads; head += heads) {
                    const int64_t count = std::min(tile, queries - t * tile);
                    const int64_t end = origin + t * tile + count;
                    Item item{row, t * tile, count, head, heads, 0, end, -1};
                    if (queries > tile || end <= SPLIT) {
                        items.push_back(item);
                        continue;
                    }
                    item.partial = room;
                    merges.push_back(item);
                    for (; item.begin < end; item.begin += SPLIT) {
                        item.end = std::min(item.begin + SPLIT, end);
                        item.partial = room;
                        items.push_back(item);
                        room += State::size(heads * count * group, width);
                    }
                }
        }
        if (int64_t(partials.size()) < room) partials.resize(room);
        work = 0;
        for (const Item& item : items)
            work += (item.end - item.begin) * item.heads * item.queries * group * width;
    }
};

}  // namespace octavo
