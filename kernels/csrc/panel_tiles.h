// Rows and a panel (see `panel.h`) as the two sides of a product by tiles.
//
// Of 576 inputs, TILE_ROWS rows and a panel take 36 KiB each, and a first cache has room for one of
// them: what both leave there is gone by the time it is wanted again, and tiles wait for the second
// cache half of the time. So a panel stays for all passes over it, and rows only pass.
#pragma once

#include <cstring>
#include <vector>

#include "tiles.h"

namespace octavo {

constexpr int64_t STAYING = 18;  // steps of a panel, which the first cache has room for

// Rows of bfloat16 in the order in which tiles read them: TILE_ROWS by TILE_ROWS, or as many as are
// left; of these step by step, TILE_INPUTS of each row side by side.
struct TiledOrder {
    static constexpr int64_t LINE_BYTES = 2 * TILE_INPUTS;
    int64_t rows;
    int64_t steps;

    int64_t together(int64_t row) const {
        return std::min(TILE_ROWS, rows - row / TILE_ROWS * TILE_ROWS);
    }
    // Where a step of a row lies, in bytes.
    int64_t at(int64_t row, int64_t step) const {
        const int64_t within = row % TILE_ROWS;
        return ((row - within) * steps + step * together(row) + within) * LINE_BYTES;
    }
};

// Up to TILE_ROWS of them as the left side of a product.
struct OrderedTiles {
    static constexpr int64_t stride = TiledOrder::LINE_BYTES;
    const char* first;
    int64_t step;  // bytes from one to the next

    const char* at(int64_t k, int half) const { return first + k * step + half * 16 * stride; }
    static constexpr bool stays(int64_t) { return false; }
};

// A panel of which `staying` steps stay in the first cache. With every step, `ahead` bytes of what
// comes next are asked for, into the second: the first has no room for them.
template <class Chore>
struct PanelTiles {
    static constexpr int64_t stride = 128;  // bytes of a panel's word of each output
    const char* panel;
    const char* next;
    int64_t ahead;
    int64_t staying;
    Chore& chore;

    const char* at(int64_t k, int half) const { return panel + k * 16 * stride + half * 64; }
    bool stays(int64_t k) const { return k < staying; }
    ALWAYS_INLINE void meanwhile(int64_t k, int quarter) const {
        if (quarter != 2) return;
        for (int64_t at = 0; at < ahead; at += 64) __builtin_prefetch(next + k * ahead + at, 0, 2);
        chore();
    }
};

// `count` rows from `row` on, a multiple of TILE_ROWS, of what begins at `rows`.
inline OrderedTiles ordered_tiles(const char* rows, int64_t row, int64_t count, int64_t steps) {
    return {rows + row * steps * TiledOrder::LINE_BYTES, count * TiledOrder::LINE_BYTES};
}

// Memory for rows in that order.
class OrderedRows {
public:
    // Copies rows that lie `stride` bytes apart.
    const char* copy(const char* rows, int64_t stride, TiledOrder order) {
        lines.resize(order.rows * order.steps);
        for (int64_t r = 0; r < order.rows; r++, rows += stride) {
            char* to = lines.data()->bytes + order.at(r, 0);
            const int64_t step = order.together(r) * int64_t(sizeof(Line));
            for (int64_t k = 0; k < order.steps; k++, to += step)
                std::memcpy(to, rows + k * sizeof(Line), sizeof(Line));
        }
        return lines.data()->bytes;
    }

private:
    struct alignas(TiledOrder::LINE_BYTES) Line {
        char bytes[TiledOrder::LINE_BYTES];
    };
    std::vector<Line> lines;
};

}  // namespace octavo
