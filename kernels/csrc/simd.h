// Vectors of the machine's native width and the two storage types, float32 and bfloat16.
//
// Written with the vector types that GCC and Clang share, so that the same source serves AVX-512,
// AVX2, SSE2 and NEON. Wider vectors than the machine has would be spilled: W follows the flags.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define ALWAYS_INLINE __attribute__((always_inline)) inline

namespace octavo {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

struct bf16 {
    uint16_t bits;
};

// Bytes as they lie, reread as another type of the same size.
template <class To, class From>
inline To as(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <class V>
inline V load_raw(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

// 16-bit to 32-bit lanes and back. GCC makes several instructions of these where one will do.
inline vu widen(const void* from) {
#if defined(__AVX512F__)
    return as<vu>(_mm512_cvtepu16_epi32(load_raw<__m256i>(from)));
#elif defined(__AVX2__)
    return as<vu>(_mm256_cvtepu16_epi32(load_raw<__m128i>(from)));
#else
    return __builtin_convertvector(load_raw<vh>(from), vu);
#endif
}
inline vh narrow(vu x) {
#if defined(__AVX512F__)
    return as<vh>(_mm512_cvtepi32_epi16(as<__m512i>(x)));
#else
    return __builtin_convertvector(x, vh);
#endif
}

inline vf splat(float x) { return x - vf{}; }

inline vf load(const float* from) { return load_raw<vf>(from); }

inline vf load(const bf16* from) { return as<vf>(widen(from) << 16); }

inline vf load(const int8_t* from) {
#if defined(__AVX512F__)
    return as<vf>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_raw<__m128i>(from))));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return as<vf>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#else
    typedef int8_t vb __attribute__((vector_size(W)));
    return __builtin_convertvector(load_raw<vb>(from), vf);
#endif
}

inline void store(float* to, vf x) { std::memcpy(to, &x, sizeof(x)); }

// Rounds to nearest, ties to even; a NaN stays one. The instruction makes subnormal numbers zero.
inline void store(bf16* to, vf x) {
#if defined(__AVX512BF16__)
    const vh half = as<vh>(_mm512_cvtneps_pbh(as<__m512>(x)));
#else
    vu bits = as<vu>(x);
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const vh half = narrow(x == x ? rounded : (rounded & 0) + 0x7fc0);
#endif
    std::memcpy(to, &half, sizeof(half));
}

// x as it reads after a stay in T.
template <class T>
inline vf rounded(vf x) {
    if constexpr (std::is_same_v<T, float>) return x;
#if defined(__AVX512BF16__)
    const __m512i words = _mm512_cvtepu16_epi32(as<__m256i>(_mm512_cvtneps_pbh(as<__m512>(x))));
    return as<vf>(_mm512_slli_epi32(words, 16));
#else
    T kept[W];
    store(kept, x);
    return load(kept);
#endif
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return as<float>(uint32_t(x.bits) << 16); }

template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
    return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
    uint32_t bits = as<uint32_t>(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return bf16{uint16_t(x == x ? rounded : 0x7fc0)};
}

// Two bfloat16 to a 32-bit word: the low halves, then the high halves, as floats.
inline void split_pairs(const void* from, vf& low, vf& high) {
    vu words = load_raw<vu>(from);
    low = as<vf>(words << 16);
    high = as<vf>(words & 0xffff0000u);
}

inline vf max(vf a, vf b) {
#if defined(__AVX512F__)
    return as<vf>(_mm512_max_ps(as<__m512>(a), as<__m512>(b)));  // GCC makes two instructions
#else
    return a > b ? a : b;
#endif
}

template <class V, class Op>
inline float reduce(V x, Op op) {
    if constexpr (sizeof(V) == sizeof(float)) {
        return as<float>(x);
    } else if constexpr (sizeof(V) == 2 * sizeof(float)) {
        return op(x[0], x[1]);
    } else {
        typedef float half __attribute__((vector_size(sizeof(V) / 2)));
        half parts[2];
        std::memcpy(parts, &x, sizeof(x));
        return reduce(op(parts[0], parts[1]), op);
    }
}

inline float sum_of(vf x) {
    return reduce(x, [](auto a, auto b) { return a + b; });
}
inline float max_of(vf x) {
    return reduce(x, [](auto a, auto b) { return a > b ? a : b; });
}

inline bool any_above(vf x, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(as<__m512>(x), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
    return max_of(x) > bound;
#endif
}

// 2^x within two units in the last place. Below 2^-126 the answer is exactly 0, so that a masked
// key (x = -infinity) leaves no trace; above 2^127 it is 2^127.
inline vf exp2(vf x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
    vf bounded = x > 127.0f ? splat(127.0f) : x;
    vf kept = bounded < -126.0f ? splat(-126.0f) : bounded;
    vf whole = (kept + round) - round;
    vf f = kept - whole;
    vf p = f * 1.54697320e-4f + 1.34004322e-3f;
    p = p * f + 9.61802560e-3f;
    p = p * f + 5.55032721e-2f;
    p = p * f + 2.40226512e-1f;
    p = p * f + 6.93147207e-1f;
    p = p * f + 1.0f;
    vi exponent = (__builtin_convertvector(whole, vi) + 127) << 23;
    return bounded < -126.0f ? vf{} : p * as<vf>(exponent);
}

#if defined(__AVX512DQ__)
// a * b - c, rounded once wherever it is compiled.
inline vf multiply_subtract(vf a, vf b, vf c) {
    return as<vf>(_mm512_fmsub_ps(as<__m512>(a), as<__m512>(b), as<__m512>(c)));
}

// 2^x within 8e-5 of itself, which is little beside the 2e-3 of rounding to bfloat16. Far below
// 1, for x = -infinity too, it is 0.
inline vf exp2_to_round(vf x) {
    // What is above a whole number, which `scalef` then takes; of an infinity, 0. A NaN stays one.
    const vf f = as<vf>(_mm512_reduce_ps(as<__m512>(x), _MM_FROUND_TO_NEG_INF));
    vf p = f * 7.802452e-2f + 2.260672e-1f;
    p = p * f + 6.958335e-1f;
    p = p * f + 9.999252e-1f;
    return as<vf>(_mm512_scalef_ps(as<__m512>(p), as<__m512>(x)));
}

// 1 / x within 2^-14 of itself, of what is neither infinite nor subnormal; see above.
inline vf inverse_to_round(vf x) { return as<vf>(_mm512_rcp14_ps(as<__m512>(x))); }
#else
inline vf exp2_to_round(vf x) { return exp2(x); }
inline vf inverse_to_round(vf x) { return 1.0f / x; }
#endif

}  // namespace octavo
