// The memory that attention works in.
#pragma once

#include <cstdint>
#include <vector>

#include "items.h"
#include "tile.h"
#include "tiles.h"

namespace octavo {

// A thread's own memory, kept from call to call.
struct Scratch {
    std::vector<float> memory;

    float* floats(int64_t count) {
        if (int64_t(memory.size()) < count + 16) memory.resize(count + 16);
        uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
        return reinterpret_cast<float*>((address + 63) & ~uintptr_t(63));
    }
};

// What an item needs, cut from a Scratch.
template <class F>
struct Buffers {
    F* queries;     // [rows, depth]
    float* scores;  // [rows of a head, TILE], or of two groups of them: see turns.h
    vf* weights;    // [rows]
    F* keys;        // [depth, TILE]
    F* values;      // [TILE / NUMBERS, width], of each of a split's tiles where there are tiles
    float* first;   // two states
    float* second;

    Buffers(Scratch& scratch, int64_t rows, int64_t depth, int64_t width) {
        const int64_t state = State::size(rows, width), more = rows + SPARE_ROWS;
        const int64_t packed = (HAS_TILES ? SPLIT : TILE) / NUMBERS<F>;
        const int64_t sizes[] = {more * depth, more * TILE, rows * W, depth * TILE, packed * width,
                                 state,        state};
        int64_t total = 0;
        for (int64_t size : sizes) total += divide_up(size, 16) * 16;
        float* memory = scratch.floats(total);
        auto take = [&](int64_t count) {
            float* from = memory;
            memory += divide_up(count, 16) * 16;
            return from;
        };
        queries = reinterpret_cast<F*>(take(sizes[0]));
        scores = take(sizes[1]);
        weights = reinterpret_cast<vf*>(take(sizes[2]));
        keys = reinterpret_cast<F*>(take(sizes[3]));
        values = reinterpret_cast<F*>(take(sizes[4]));
        first = take(state);
        second = take(state);
    }
};

}  // namespace octavo
