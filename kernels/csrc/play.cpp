// Plays recorded calls: all of a step's kernels in one call from Python.
//
// A call is MOST_ARGUMENTS + 1 words: the function's number, then its arguments, each in a word of
// its own as `octavo.h` declares them, a float in the low half.
#include <cstring>
#include <type_traits>
#include <utility>

#include "octavo.h"

namespace {

constexpr int MOST_ARGUMENTS = 20;

template <class T>
T argument(int64_t word) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(word);
    } else if constexpr (std::is_same_v<T, float>) {
        float number;
        std::memcpy(&number, &word, sizeof(number));
        return number;
    } else {
        return T(word);
    }
}

// A function as one that takes words. Those without a result succeed.
template <auto FUNCTION>
struct Playable;
template <class R, class... A, R (*FUNCTION)(A...)>
struct Playable<FUNCTION> {
    static_assert(sizeof...(A) <= MOST_ARGUMENTS);

    template <size_t... I>
    static int call(const int64_t* words, std::index_sequence<I...>) {
        if constexpr (std::is_void_v<R>) {
            FUNCTION(argument<A>(words[I])...);
            return 0;
        } else {
            return FUNCTION(argument<A>(words[I])...);
        }
    }
    static int play(const int64_t* words) { return call(words, std::index_sequence_for<A...>{}); }
};

struct Entry {
    const char* name;
    int (*play)(const int64_t* words);
};

#define ENTRY(function) \
    { #function, Playable<function>::play }
const Entry ENTRIES[] = {
    ENTRY(octavo_attention),    ENTRY(octavo_write_kv),     ENTRY(octavo_rotary_write_kv),
    ENTRY(octavo_rms_norm),     ENTRY(octavo_add_rms_norm), ENTRY(octavo_silu_and_mul),
    ENTRY(octavo_linear),
};
#undef ENTRY

}  // namespace

extern "C" {

int octavo_playable(const char* name) {
    int number = 0;
    for (const Entry& entry : ENTRIES) {
        if (std::strcmp(entry.name, name) == 0) return number;
        number++;
    }
    return -1;
}

int octavo_play(const int64_t* calls, int64_t count) {
    for (; count > 0; count--, calls += MOST_ARGUMENTS + 1)
        if (int fault = ENTRIES[calls[0]].play(calls + 1)) return fault;
    return 0;
}
}
