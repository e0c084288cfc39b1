// Products of bfloat16 by AMX, the tile registers of some Intel processors.
//
// A tile is 16 rows of 64 bytes. TILE_ROWS rows of x, times one panel (see `linear.cpp`), which is
// two tiles wide, take eight of them: two of x, two of the panel, four of sums. Where the processor
// has none, TILE_TWIN puts plain loops in their place, word for word what Intel's manual says that
// the instructions do, so that all around them can be tested on any machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd.h"

#if defined(__AMX_BF16__) && !defined(TILE_TWIN)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

#if defined(__AMX_BF16__) || defined(TILE_TWIN)
constexpr bool HAS_TILES = true;
#else
constexpr bool HAS_TILES = false;
#endif

constexpr int64_t TILE_ROWS = 32;    // of x, at most, in one pass
constexpr int TILE_INPUTS = 32;  // that one tile is wide, as bfloat16

// What the instruction LDTILECFG reads.
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

#if defined(TILE_TWIN)

struct TileTwin {
    TileShapes shapes;
    char data[8][16][64];
};
inline TileTwin& tile_twin() {
    static thread_local TileTwin twin;
    return twin;
}
inline bool tiles_granted() { return true; }
inline void set_tiles(const TileShapes& shapes) {
    tile_twin().shapes = shapes;
    std::memset(tile_twin().data, 0, sizeof(tile_twin().data));
}
inline void release_tiles() { tile_twin().shapes = TileShapes{0}; }
template <int T>
inline void zero_tile() {
    std::memset(tile_twin().data[T], 0, sizeof(tile_twin().data[T]));
}
template <int T>
inline void load_tile(const void* from, int64_t stride) {
    const TileShapes& shapes = tile_twin().shapes;
    for (int r = 0; r < shapes.rows[T]; r++)
        std::memcpy(tile_twin().data[T][r], static_cast<const char*>(from) + r * stride,
                    shapes.row_bytes[T]);
}
template <int T>
inline void pass_tile(const void* from, int64_t stride) {
    load_tile<T>(from, stride);
}
template <int T>
inline void store_tile(void* to, int64_t stride) {
    const TileShapes& shapes = tile_twin().shapes;
    for (int r = 0; r < shapes.rows[T]; r++)
        std::memcpy(static_cast<char*>(to) + r * stride, tile_twin().data[T][r],
                    shapes.row_bytes[T]);
}
// sums += a @ b: even and odd inputs add up apart, over the whole tile, then together.
template <int SUMS, int A, int B>
inline void multiply_tiles() {
    TileTwin& twin = tile_twin();
    for (int m = 0; m < twin.shapes.rows[SUMS]; m++)
        for (int n = 0; n < twin.shapes.row_bytes[SUMS] / 4; n++) {
            float apart[2] = {}, sum;
            for (int k = 0; k < twin.shapes.row_bytes[A] / 2; k++) {
                bf16 a, b;
                std::memcpy(&a, &twin.data[A][m][2 * k], 2);
                std::memcpy(&b, &twin.data[B][k / 2][4 * n + 2 * (k % 2)], 2);
                apart[k % 2] = std::fma(to_float(a), to_float(b), apart[k % 2]);
            }
            std::memcpy(&sum, &twin.data[SUMS][m][4 * n], 4);
            sum += apart[0] + apart[1];
            std::memcpy(&twin.data[SUMS][m][4 * n], &sum, 4);
        }
}

#elif defined(__AMX_BF16__)

// Linux lends a process its tiles when it asks, once.
inline bool tiles_granted() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return granted;
}
inline void set_tiles(const TileShapes& shapes) {
    asm volatile("ldtilecfg %0" ::"m"(shapes));  // the compiler's own call reads 8 bytes of it
}
inline void release_tiles() { _tile_release(); }
template <int T>
inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"n"(T));
}
template <int T>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(T) : "memory");
}
// As that, of what need not stay in the first cache.
template <int T>
inline void pass_tile(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(T) : "memory");
}
template <int T>
inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "n"(T) : "memory");
}
template <int SUMS, int A, int B>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(SUMS), "n"(A), "n"(B));
}

#else

inline bool tiles_granted() { return false; }
inline void set_tiles(const TileShapes&) {}
inline void release_tiles() {}
template <int T>
inline void zero_tile() {}
template <int T>
inline void load_tile(const void*, int64_t) {}
template <int T>
inline void pass_tile(const void*, int64_t) {}
template <int T>
inline void store_tile(void*, int64_t) {}
template <int SUMS, int A, int B>
inline void multiply_tiles() {}

#endif

// A thread's tiles, for as long as this lives.
class Tiles {
public:
    ~Tiles() {
        if (shaped) release_tiles();
    }

    // `sums` [rows, 32] (+)= a [rows, steps * TILE_INPUTS] @ b, of at most TILE_ROWS rows, those of
    // `sums` so many bytes apart. `a.at(k, half)` is where step k of 16 rows lies, `b.at(k, half)`
    // that of 16 outputs; rows of 64 bytes, `stride` apart. What does not `stay(k)` in the first
    // cache leaves more of it to what does. `b.meanwhile(k, quarter)` is called four times a step, for
    // something else to be done while tiles multiply.
    template <class A, class B>
    void product(const A& a, int64_t rows, int64_t steps, const B& b, float* sums, int64_t sums_stride,
                 bool add) {
        shape(rows);
        const bool two = rows > 16;
        char* to = reinterpret_cast<char*>(sums);
        char* below = to + 16 * sums_stride;
        if (add) {
            load_tile<0>(to, sums_stride), load_tile<1>(to + 64, sums_stride);
            if (two) load_tile<2>(below, sums_stride), load_tile<3>(below + 64, sums_stride);
        } else {
            zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
        }
        for (int64_t k = 0; k < steps; k++) {
            load<6>(b, k, 0);
            b.meanwhile(k, 0);
            load<7>(b, k, 1);
            b.meanwhile(k, 1);
            load<4>(a, k, 0);
            multiply_tiles<0, 4, 6>(), multiply_tiles<1, 4, 7>();
            b.meanwhile(k, 2);
            if (two) {
                load<5>(a, k, 1);
                multiply_tiles<2, 5, 6>(), multiply_tiles<3, 5, 7>();
            }
            b.meanwhile(k, 3);
        }
        store_tile<0>(to, sums_stride), store_tile<1>(to + 64, sums_stride);
        if (two) store_tile<2>(below, sums_stride), store_tile<3>(below + 64, sums_stride);
    }

private:
    template <int T, class Side>
    static ALWAYS_INLINE void load(const Side& side, int64_t k, int half) {
        if (side.stays(k))
            load_tile<T>(side.at(k, half), side.stride);
        else
            pass_tile<T>(side.at(k, half), side.stride);
    }

    // Tiles of as many rows as there are, since no more may be read or written.
    void shape(int64_t rows) {
        if (rows == shaped || (rows == 16 && shaped > 16)) return;
        shaped = rows;
        TileShapes shapes;
        const int64_t first = std::min<int64_t>(rows, 16), second = std::max<int64_t>(rows - 16, 1);
        const int64_t counts[8] = {first, first, second, second, first, second, 16, 16};
        for (int t = 0; t < 8; t++) {
            shapes.rows[t] = uint8_t(counts[t]);
            shapes.row_bytes[t] = 64;
        }
        set_tiles(shapes);
    }

    int64_t shaped = 0;
};

// Rows as they lie, `stride` bytes apart, as the left side of a product.
struct RowTiles {
    const void* rows;
    int64_t stride;

    const char* at(int64_t k, int half) const {
        return static_cast<const char*>(rows) + half * 16 * stride + k * 64;
    }
    static constexpr bool stays(int64_t) { return true; }
};

// The right side of a product of one step, [TILE_INPUTS / 2, 32] pairs.
struct OneStep {
    static constexpr int64_t stride = 128;
    const void* pairs;

    const char* at(int64_t, int half) const { return static_cast<const char*>(pairs) + half * 64; }
    static constexpr bool stays(int64_t) { return true; }
    static void meanwhile(int64_t, int) {}
};

// Whether there are tiles, and they multiply as they should: a small product of whole numbers.
inline bool tiles_work() {
    static const bool work = tiles_granted() && [] {
        constexpr int ROWS_TRIED = 18, OUTPUTS = 32;
        alignas(64) bf16 x[ROWS_TRIED][TILE_INPUTS], panel[TILE_INPUTS / 2][OUTPUTS][2];
        alignas(64) float sums[TILE_ROWS][OUTPUTS];
        for (int r = 0; r < ROWS_TRIED; r++)
            for (int k = 0; k < TILE_INPUTS; k++) x[r][k] = from_float<bf16>(float((r + k) % 5));
        for (int k = 0; k < TILE_INPUTS; k++)
            for (int o = 0; o < OUTPUTS; o++)
                panel[k / 2][o][k % 2] = from_float<bf16>(float((3 * k + o) % 7));
        Tiles().product(RowTiles{x, sizeof(x[0])}, ROWS_TRIED, 1, OneStep{panel}, sums[0],
                        sizeof(sums[0]), false);
        for (int r = 0; r < ROWS_TRIED; r++)
            for (int o = 0; o < OUTPUTS; o++) {
                float exact = 0;
                for (int k = 0; k < TILE_INPUTS; k++)
                    exact += float((r + k) % 5) * float((3 * k + o) % 7);
                if (sums[r][o] != exact) return false;
            }
        return true;
    }();
    return work;
}

}  // namespace octavo
