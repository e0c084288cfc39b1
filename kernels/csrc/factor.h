// What attention multiplies: a factor is a float32, or a pair of bfloat16 where the machine has an
// instruction that adds both products of two pairs to a float32 (AVX512-BF16).
//
// That instruction does twice the multiply-adds of a float32 one. It reads subnormal numbers as
// zero, and sums in its own order: any query must go through it or none, never by the batch.
#pragma once

#include "simd.h"

namespace octavo {

struct Pair {
    bf16 low, high;
};

template <class T>
struct FactorOf {
    typedef float type;
};
#if defined(__AVX512BF16__)
template <>
struct FactorOf<bf16> {
    typedef Pair type;
};
#endif
template <class T>
using Factor = typename FactorOf<T>::type;

template <class F>
constexpr bool PAIRED = std::is_same_v<F, Pair>;
template <class F>
constexpr int NUMBERS = PAIRED<F> ? 2 : 1;  // that a factor holds
template <class T>
constexpr int PER_WORD = 4 / int(sizeof(T)) / NUMBERS<Factor<T>>;  // factors in a word of a cache
template <class F>
using Vector = std::conditional_t<PAIRED<F>, vu, vf>;

ALWAYS_INLINE vf multiply_add(vf a, vf b, vf sum) { return sum + a * b; }

// N numbers, a multiple of two vectors' worth.
template <int N, class T>
ALWAYS_INLINE void round_all(T* to, const float* from) {
    for (int i = 0; i < N; i += W) store(to + i, load(from + i));
}

#if defined(__AVX512BF16__)
ALWAYS_INLINE vf multiply_add(vu a, vu b, vf sum) {
    return as<vf>(_mm512_dpbf16_ps(as<__m512>(sum), as<__m512bh>(a), as<__m512bh>(b)));
}

ALWAYS_INLINE vu splat(Pair x) { return as<uint32_t>(x) - vu{}; }

// Pairs of neighbours, of `first` and then of `second`, rounded to nearest, ties to even.
ALWAYS_INLINE vu round_to_pairs(vf first, vf second) {
    return as<vu>(_mm512_cvtne2ps_pbh(as<__m512>(second), as<__m512>(first)));
}

template <int N>
ALWAYS_INLINE void round_all(bf16* to, const float* from) {
    for (int i = 0; i < N; i += 2 * W) {
        vu pairs = round_to_pairs(load(from + i), load(from + i + W));
        std::memcpy(to + i, &pairs, sizeof(pairs));
    }
}

// Pairs of a number here and the one in the same place there.
template <int C>
ALWAYS_INLINE void zip(const bf16* low, const bf16* high, vu (&to)[C]) {
    for (int c = 0; c < C; c++) to[c] = widen(low + c * W) | widen(high + c * W) << 16;
}
#endif

}  // namespace octavo
