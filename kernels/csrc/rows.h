// Rows of numbers in vectors, the last of which may be shorter.
#pragma once

#include "simd.h"

namespace octavo {

template <class T>
inline const T* row_of(const char* data, int64_t offset) {
    return reinterpret_cast<const T*>(data + offset);
}
template <class T>
inline T* row_of(char* data, int64_t offset) {
    return reinterpret_cast<T*>(data + offset);
}

// Calls `body(offset, count)` over a row in vectors, from `i` on; the last one may be shorter.
// `count` is W but there.
template <class Body>
ALWAYS_INLINE void for_vectors_from(int64_t i, int64_t width, const Body& body) {
    for (; i + W <= width; i += W) body(i, std::integral_constant<int, W>{});
    if (i < width) body(i, int(width - i));
}
template <class Body>
ALWAYS_INLINE void for_vectors(int64_t width, const Body& body) {
    for_vectors_from(0, width, body);
}

template <class T, class Count>
inline vf load_some(const T* from, Count count) {
    if constexpr (!std::is_same_v<Count, int>) {
        return load(from);
    } else {
        T padded[W] = {};
        std::memcpy(padded, from, count * sizeof(T));
        return load(padded);
    }
}

template <class T, class Count>
inline void store_some(T* to, vf x, Count count) {
    if constexpr (!std::is_same_v<Count, int>) {
        store(to, x);
    } else {
        T padded[W];
        store(padded, x);
        std::memcpy(to, padded, count * sizeof(T));
    }
}

}  // namespace octavo
