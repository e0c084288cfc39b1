// The gate of a feed-forward layer.
#pragma once

#include "simd.h"

namespace octavo {

// x / (1 + e^-x), as exactly as T is.
template <class T>
ALWAYS_INLINE vf silu(vf x) {
    const vf power = x * -1.44269504f;
    if constexpr (std::is_same_v<T, float>)
        return x / (exp2(power) + 1.0f);
    else
        return x * inverse_to_round(exp2_to_round(power) + 1.0f);
}

}  // namespace octavo
