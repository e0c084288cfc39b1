// Paged attention of a ragged batch.
//
// Within a split, which is SPLIT keys at an absolute position, softmax runs online over tiles of
// TILE keys; splits are folded in order. So the arithmetic of a query depends on its position and
// its row's keys alone: not on the batch, the threads, how the prompt was cut into chunks, or which
// items a split was given to.
#include <algorithm>

#include "buffers.h"
#include "cell.h"
#include "cell_tiles.h"
#include "few_rows.h"
#include "items.h"
#include "octavo.h"
#include "product.h"
#include "softmax.h"
#include "team.h"
#include "tile.h"
#include "turns.h"

namespace octavo {
namespace {

constexpr int64_t NO_WINDOW = int64_t(1) << 62;
constexpr int64_t PACK_ROWS = 12;  // from so many on, unpacking a bfloat16 tile once pays

template <class T>
struct Attention {
    typedef octavo::Factor<T> F;
    typedef octavo::Buffers<F> Buffers;

    const Batch& batch;
    const Cells<T> cells;
    const Tokens query, out;
    const int64_t group, dim;
    const int64_t depth, width;  // dim in factors; dim rounded up to whole vectors
    const float scale;           // scores to base 2
    const int64_t window;        // a query sees at most so many keys, its own the last of them
    const bool tiled;            // by the processor's tiles, whose sums run in their own order
    Plan& plan;

    Attention(const Batch& b, const Cells<T>& c, Tokens q, Tokens o, int64_t heads, float s,
              int64_t w, Plan& p)
        : batch(b), cells(c), query(q), out(o), group(heads / c.kv_heads), dim(c.head_dim),
          depth(dim / NUMBERS<F>), width(divide_up(dim, W) * W), scale(s * 1.44269504f),
          window(w > 0 ? w : NO_WINDOW), tiled(fit_tiles(c)), plan(p) {}

    const int32_t* table(int64_t row) const { return batch.kv_indices + batch.kv_indptr[row]; }

    // Whether a head has so few rows that vectors stand in for tiles.
    bool has_few(const Item& item) const { return item.queries * group <= FEW_ROWS; }

    int64_t rows_of(const Item& item) const { return item.heads * item.queries * group; }

    // The position of the first key that an item's queries see.
    int64_t first_seen(const Item& item) const {
        return std::max<int64_t>(0, origin_of(batch, item.row) + item.query + 1 - window);
    }

    void load_queries(const Item& item, F* to) const {
        int64_t token = batch.qo_indptr[item.row] + item.query;
        for (int64_t head = item.head; head < item.head + item.heads; head++)
            for (int64_t q = 0; q < item.queries; q++, to += group * depth) {
                const T* from = query.at<const T>(token + q) + head * group * dim;
                if constexpr (PAIRED<F>)
                    std::memcpy(to, from, group * dim * sizeof(T));
                else
                    for (int64_t i = 0; i < group * dim; i++) to[i] = to_float(from[i]) * scale;
            }
    }

    // result = sums * share, with its dimensions in order.
    void write_row(const float* sums, const Places* places, float share, T* to) const {
        int64_t d = 0;
        for (; d + W <= dim; d += W)
            store(to + d, (places ? places->dimensions(sums, d) : load(sums + d)) * splat(share));
        for (; d < dim; d++) to[d] = from_float<T>(sums[d] * share);
    }

    void write_output(const Item& item, const State& state) const {
        const Places* places = !tiled ? nullptr : has_few(item) ? &MERGED : &ZIPPED;
        const int64_t token = batch.qo_indptr[item.row] + item.query;
        int64_t r = 0;
        for (int64_t head = item.head; head < item.head + item.heads; head++)
            for (int64_t q = 0; q < item.queries; q++) {
                T* to = out.at<T>(token + q) + head * group * dim;
                for (int64_t g = 0; g < group; g++, r++)
                    write_row(state.sums + r * width, places, 1.0f / state.weights[r], to + g * dim);
            }
    }

    // scores = queries @ keys, of which the first `count` exist.
    void score(const CachedKeys<T>& cached, int64_t count, const F* queries, int64_t rows,
               const Buffers& buffers) const {
        constexpr int STEP = CachedKeys<T>::STEP;
        const int64_t vectors = divide_up(count, W);
        if (STEP == 1 || rows < PACK_ROWS)  // as they lie, factors need no unpacking
            return product(queries, depth, rows, depth, cached, vectors, buffers.scores, TILE,
                           false);
        for (int64_t k = 0; k < depth; k += STEP)
            for (int64_t v = 0; v < vectors; v++) {
                Vector<F> row[STEP][1];
                cached.fetch(k, v * W, row);
                for (int s = 0; s < STEP; s++)
                    std::memcpy(buffers.keys + (k + s) * TILE + v * W, row[s], sizeof(row[s]));
            }
        product(queries, depth, rows, depth, Packed<F>{buffers.keys, TILE}, vectors,
                buffers.scores, TILE, false);
    }

    // The same where a block is narrower than a vector.
    void score_narrow(const Item& item, int64_t head, int64_t at, int64_t count, const F* queries,
                      int64_t rows, const Buffers& buffers) const {
        constexpr int64_t STEP = CachedKeys<T>::STEP;
        const int64_t size = cells.block_size;
        for (int64_t j = 0; j < count; j++) {
            const uint32_t* words = cells.keys(table(item.row)[(at + j) / size], head);
            for (int64_t k = 0; k < depth; k += STEP) {
                const uint32_t* word = words + (at + j) % size + k / STEP * size;
                F* to = buffers.keys + k * TILE + j;
                if constexpr (STEP == 1) {
                    *to = load_raw<F>(word);
                } else {
                    T pair[STEP];
                    std::memcpy(pair, word, sizeof(pair));
                    for (int64_t s = 0; s < STEP; s++) to[s * TILE] = to_float(pair[s]);
                }
            }
        }
        product(queries, depth, rows, depth, Packed<F>{buffers.keys, TILE}, divide_up(count, W),
                buffers.scores, TILE, false);
    }

    // Copies C vectors of factor k.
    template <int C>
    void unpack(const CachedValues<T>& cached, int64_t k, int64_t column, F* to) const {
        Vector<F> row[1][C];
        cached.fetch(k, column, row);
        std::memcpy(to, row[0], sizeof(row[0]));
    }

    // sums += weights @ values, of which the first `count` exist; a key that completes the last
    // pair has a weight of 0. The weights lie where the scores did.
    void gather(const CachedValues<T>& cached, int64_t count, const float* scores, int64_t rows,
                const Buffers& buffers, float* sums) const {
        const F* weights = reinterpret_cast<const F*>(scores);
        const int64_t factors = divide_up(count, NUMBERS<F>);
        if (width == dim && (std::is_same_v<T, float> || rows < PACK_ROWS))
            return product(weights, TILE, rows, factors, cached, width / W, sums, width, true);
        for (int64_t j = 0; j < factors; j++) {
            F* to = buffers.values + j * width;
            int64_t d = 0;
            for (; d + 4 * W <= dim; d += 4 * W) unpack<4>(cached, j, d, to + d);
            for (; d + W <= dim; d += W) unpack<1>(cached, j, d, to + d);
            for (; d < dim; d++) to[d] = cached.at(j, d);
            for (; d < width; d++) to[d] = F{};
        }
        product(weights, TILE, rows, factors, Packed<F>{buffers.values, width}, width / W, sums,
                width, true);
    }

    // GROUP_ROWS rows of an item's head `h` from row `r` on, or as many as there are. Where the item
    // has one head, whole tiles are multiplied, since tiles of several shapes take longer.
    Group<F> group_at(const Item& item, int64_t h, int64_t r, int64_t begin, const Buffers& buffers,
                      const State& state) const {
        Group<F> some;
        const int64_t rows = item.queries * group, first = h * rows + r;
        const int64_t start = origin_of(batch, item.row) + item.query;
        some.count = std::clamp<int64_t>(rows - r, 0, GROUP_ROWS);
        some.multiplied = item.heads == 1 && rows > GROUP_ROWS ? GROUP_ROWS : some.count;
        some.queries = buffers.queries + first * depth;
        some.state = {state.sums + first * width, state.tops + first, nullptr};
        some.weights = buffers.weights + first;
        for (int64_t i = 0; i < some.count; i++)
            some.seen[i] = start + (r + i) / group + 1 - begin;
        return some;
    }

    // As `attend_split`, by tiles. A pair of groups sees all of the split before the next pair does,
    // so that what they write to stays in the first cache.
    void attend_tiled(const Item& item, int64_t begin, int64_t end, const Buffers& buffers,
                      const State& state, Tiles& tiles) const {
        if constexpr (PAIRED<F>) {
            const int64_t start = origin_of(batch, item.row) + item.query;
            // Queries before the split see none of it.
            const int64_t unseeing = std::max<int64_t>(0, begin - start) * group;
            Turns<T> turns(dim, scale, window, buffers.scores, tiles);
            SplitTiles<T> split;
            split.values = buffers.values;
            split.first = std::max<int64_t>(0, first_seen(item) - begin) / TILE;
            split.past = divide_up(end - begin, TILE);
            split.length = end - begin;
            for (int64_t h = 0; h < item.heads; h++) {
                for (int64_t t = 0; t < split.past; t++)
                    split.cached[t].locate(cells, table(item.row), item.head + h, begin + t * TILE,
                                           end);
                for (int64_t t = split.first; t < split.past; t++) {
                    split.cached[t].followed_by(split.cached[std::min(t + 1, split.past - 1)]);
                    pack_values(split.cached[t].values, TILE, dim,
                                buffers.values + t * (TILE / 2) * dim);
                }
                for (int64_t r = unseeing; r < item.queries * group; r += 2 * GROUP_ROWS)
                    turns.attend({group_at(item, h, r, begin, buffers, state),
                                  group_at(item, h, r + GROUP_ROWS, begin, buffers, state)},
                                 split);
            }
        }
    }

    // As those, without tiles.
    void score_few(const CachedKeys<T>& cached, int64_t count, const F* queries, int64_t rows,
                   const Buffers& buffers) const {
        if constexpr (PAIRED<F>)
            few_rows_product(queries, depth, rows, depth / 16, KeyWords{cached},
                             divide_up(count, W), buffers.scores, TILE, false);
    }

    void gather_few(const CachedValues<T>& cached, int64_t count, int64_t rows,
                    const Buffers& buffers, float* sums) const {
        if constexpr (PAIRED<F>)
            few_rows_product(reinterpret_cast<const F*>(buffers.scores), TILE, rows,
                             divide_up(count, TILE_INPUTS), ValueWords{cached}, width / W, sums,
                             width, true);
    }

    // Without tiles, or for few rows. `next` is the item that follows.
    void attend_untiled(const Item& item, int64_t begin, int64_t end, const Item& next,
                        const Buffers& buffers, const State& state) const {
        const int64_t rows = item.queries * group, start = origin_of(batch, item.row) + item.query;
        const bool few = tiled && has_few(item);
        begin = std::max(begin, first_seen(item) / TILE * TILE);
        Tile<T> pair[2];
        Tile<T>*tile = pair, *following = pair + 1;
        tile->locate(cells, table(item.row), item.head, begin, item.end);
        for (int64_t at = begin; at < end; at += TILE)
            for (int64_t h = 0; h < item.heads; h++) {
                if (h + 1 < item.heads)
                    following->locate(cells, table(item.row), item.head + h + 1, at, item.end);
                else if (at + TILE < item.end)
                    following->locate(cells, table(item.row), item.head, at + TILE, item.end);
                else
                    following->locate(cells, table(next.row), next.head, next.begin, next.end);
                tile->followed_by(*following);
                int64_t count = std::min<int64_t>(TILE, end - at);
                // Queries before the tile see none of it.
                int64_t unseeing = std::max<int64_t>(0, at - start) * group;
                int64_t first = h * rows + unseeing, past = (h + 1) * rows;
                const F* queries = buffers.queries + first * depth;
                if (few)
                    score_few(tile->keys, count, queries, past - first, buffers);
                else if (cells.block_size < W)
                    score_narrow(item, item.head + h, at, count, queries, past - first, buffers);
                else
                    score(tile->keys, count, queries, past - first, buffers);
                for (int64_t r = first, place = unseeing; r < past; r++, place++) {
                    float* scores = buffers.scores + (r - first) * TILE;
                    softmax<F>(scores, scale, start + place / group + 1 - at, window,
                               state.tops[r], buffers.weights[r], state.sums + r * width, width,
                               reinterpret_cast<F*>(scores));
                }
                if (few)
                    gather_few(tile->values, count, past - first, buffers,
                               state.sums + first * width);
                else
                    gather(tile->values, count, buffers.scores, past - first, buffers,
                           state.sums + first * width);
                std::swap(tile, following);
            }
    }

    // One split's state, from nothing. `next` is the item that follows.
    void attend_split(const Item& item, int64_t begin, int64_t end, const Item& next,
                      const Buffers& buffers, const State& state, Tiles& tiles) const {
        std::fill(state.sums, state.sums + rows_of(item) * width, 0.0f);
        std::fill(state.tops, state.tops + rows_of(item), NOTHING);
        std::fill(buffers.weights, buffers.weights + rows_of(item), vf{});
        const bool seen = end > first_seen(item);  // else it is a part without weight
        if (seen && tiled && !has_few(item))
            attend_tiled(item, begin, end, buffers, state, tiles);
        else if (seen)
            attend_untiled(item, begin, end, next, buffers, state);
        for (int64_t r = 0; r < rows_of(item); r++) state.weights[r] = sum_of(buffers.weights[r]);
    }

    void attend(const Item& item, const Item& next, Scratch& scratch, Tiles& tiles) {
        const int64_t rows = rows_of(item);
        Buffers buffers(scratch, rows, depth, width);
        float* memory = item.partial < 0 ? buffers.first : plan.partials.data() + item.partial;
        State total = State::at(memory, rows, width);
        State part = State::at(buffers.second, rows, width);
        load_queries(item, buffers.queries);
        for (int64_t at = item.begin; at < item.end; at += SPLIT) {
            int64_t end = std::min(at + SPLIT, item.end);
            attend_split(item, at, end, next, buffers, at == item.begin ? total : part, tiles);
            if (at > item.begin) fold(total, part, rows, width);
        }
        if (item.partial < 0) write_output(item, total);
    }

    void merge(const Item& item) {
        const int64_t rows = rows_of(item), size = State::size(rows, width);
        float* memory = plan.partials.data() + item.partial;
        State total = State::at(memory, rows, width);
        for (int64_t s = 1; s < divide_up(item.end, SPLIT); s++)
            fold(total, State::at(memory + s * size, rows, width), rows, width);
        write_output(item, total);
    }

    void run(int threads) {
        plan.make(batch, cells.kv_heads, group, width, threads);
        const std::vector<Item>& items = plan.items;
        const int64_t count = items.size();
        if (count == 0) return;
        const int team = int(std::min<int64_t>({threads, count, divide_up(plan.work, SMALL)}));
        share_out(count, team, [&](Claims& claims) {
            static thread_local Scratch scratch;
            Tiles tiles;
            // An item is claimed one ahead, so that its first tile is on its way in time.
            for (int64_t i = claims.next(); i >= 0;) {
                const int64_t next = claims.next();
                attend(items[i], items[next < 0 ? i : next], scratch, tiles);
                i = next;
            }
        });
        for_each(plan.merges.size(), team == 1, threads, [&](int64_t m) { merge(plan.merges[m]); });
    }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" void octavo_attention(int type, const Batch* batch, char* cache, int64_t block_stride,
                                 int64_t kv_heads, int64_t head_dim, const char* query,
                                 int64_t query_stride, char* out, int64_t out_stride,
                                 int64_t heads, float scale, int64_t window, int threads) {
    auto run = [&](auto zero) {
        Cells<decltype(zero)> cells{cache, block_stride, kv_heads, batch->block_size, head_dim};
        Tokens queries{const_cast<char*>(query), query_stride}, results{out, out_stride};
        static thread_local Plan plan;
        Attention<decltype(zero)>(*batch, cells, queries, results, heads, scale, window, plan)
            .run(threads);
    };
    type == 0 ? run(float{}) : run(bf16{});
}
