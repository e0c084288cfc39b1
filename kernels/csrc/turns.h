// Attention by tiles, in which two groups of rows take turns.
//
// A tile of scores is written by tiles, read by vectors that make weights of it, and these are read
// by tiles again; each would wait for what the other has just written. So tiles multiply one group
// while vectors have the other, and the compiler's order has a few instructions of each by turns.
// What is done to a row, and in which order, is the same as if it were alone.
#pragma once

#include <algorithm>

#include "cell_tiles.h"
#include "items.h"
#include "softmax.h"

namespace octavo {

constexpr int64_t GROUP_ROWS = 16;  // at most; of one tile

// Rows of one head that are multiplied together.
template <class F>
struct Group {
    const F* queries;
    State state;
    vf* weights;
    int64_t count = 0;
    int64_t multiplied = 0;    // `count`, or more: what becomes of the rows behind is never read
    int64_t seen[GROUP_ROWS];  // how many of the split's keys each row sees; ascending

    bool sees(int64_t tile) const { return count > 0 && seen[count - 1] > tile * TILE; }
};

// The tiles of one head's keys and values in a split.
template <class T>
struct SplitTiles {
    Tile<T> cached[SPLIT / TILE];
    const Factor<T>* values;  // packed: [tiles, TILE / 2, dim]
    int64_t first, past;      // tiles that any row sees
    int64_t length;           // keys from the beginning of tile 0 on

    int64_t keys(int64_t tile) const { return std::min<int64_t>(TILE, length - tile * TILE); }
};

template <class T>
class Turns {
    typedef octavo::Factor<T> F;

public:
    // `scores` is [2, GROUP_ROWS, TILE]. `scale` and `window` are as in `softmax`.
    Turns(int64_t dim, float scale, int64_t window, float* scores, Tiles& tiles)
        : dim(dim), scale(scale), window(window), scores(scores), tiles(tiles) {}

    // Both groups' shares of a split.
    void attend(const Group<F> (&groups)[2], const SplitTiles<T>& split) {
        Turn turns[2 * SPLIT / TILE];
        int64_t count = 0;
        for (int64_t tile = split.first; tile < split.past; tile++)
            for (const Group<F>& group : groups)
                if (group.sees(tile)) {
                    turns[count] = {&group, tile, scores + count % 2 * GROUP_ROWS * TILE};
                    count++;
                }
        if (count == 0) return;
        Nothing nothing;
        score(turns[0], split, nothing);
        for (int64_t i = 0; i < count; i++) {
            Softmax softmax{*this, turns[i]};
            // A row's sums may be corrected by its softmax: not while values are added to them.
            const bool apart = i > 0 && turns[i - 1].group != turns[i].group;
            if (apart) gather(turns[i - 1], split, softmax);
            if (!apart && i > 0) gather(turns[i - 1], split, nothing);
            if (i + 1 < count) score(turns[i + 1], split, softmax);
            softmax.finish();
        }
        gather(turns[count - 1], split, nothing);
    }

private:
    // A group's share of a tile.
    struct Turn {
        const Group<F>* group;
        int64_t tile;
        float* scores;  // [GROUP_ROWS, TILE]; each row's become weights in the same place
    };

    // Makes weights of scores, of one row more at each call.
    struct Softmax {
        const Turns& turns;
        const Turn& turn;
        int64_t row = 0;

        ALWAYS_INLINE void operator()() {
            const Group<F>& group = *turn.group;
            if (row == group.count) return;
            float* scores = turn.scores + row * TILE;
            softmax<F>(scores, turns.scale, group.seen[row] - turn.tile * TILE, turns.window,
                       group.state.tops[row], group.weights[row],
                       group.state.sums + row * turns.dim, turns.dim, reinterpret_cast<F*>(scores));
            row++;
        }
        void finish() {
            while (row < turn.group->count) (*this)();
        }
    };

    struct Nothing {
        void operator()() const {}
    };

    // scores = queries @ keys.
    template <class Chore>
    void score(const Turn& turn, const SplitTiles<T>& split, Chore& meanwhile) {
        const Group<F>& group = *turn.group;
        for (int64_t v = 0; v * W < split.keys(turn.tile); v += 2)
            tiles.product(RowTiles{group.queries, dim * 2}, group.multiplied, dim / TILE_INPUTS,
                          KeyTiles<Chore>{split.cached[turn.tile].keys, v, meanwhile},
                          turn.scores + v * W, TILE * 4, false);
    }

    // sums += weights @ values. Keys that do not exist have weights of 0, up to a whole tile's.
    template <class Chore>
    void gather(const Turn& turn, const SplitTiles<T>& split, Chore& meanwhile) {
        const Group<F>& group = *turn.group;
        const F* values = split.values + turn.tile * (TILE / 2) * dim;
        const int64_t steps = divide_up(split.keys(turn.tile), TILE_INPUTS);
        for (int64_t d = 0; d < dim; d += 2 * W)
            tiles.product(RowTiles{turn.scores, TILE * 4}, group.multiplied, steps,
                          ValueTiles<Chore>{values + d, dim, meanwhile}, group.state.sums + d,
                          dim * 4, true);
    }

    const int64_t dim;  // a multiple of TILE_INPUTS
    const float scale;
    const int64_t window;
    float* const scores;
    Tiles& tiles;
};

}  // namespace octavo
