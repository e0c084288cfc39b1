// Threads that share out the items of a job, and never wait for one that the system does not run.
//
// OpenMP's teams begin and end a region together: where other processes use the cores too, each of
// the two hundred regions of a step may wait for a thread that has lost its core. Here items are
// claimed one by one, by whoever runs; a thread that comes late finds the work done, and is waited
// for only while it is inside an item. Between jobs, threads look for the next one for as long as
// the gap inside a step may last, then sleep: an idle process uses no core.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace octavo {

constexpr int MOST_THREADS = 128;

// A run of neighbouring items, of which those before `next` are taken.
struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
};

// What one thread takes: the items of its own range in order, then what other ranges have left.
class Claims {
public:
    Claims(Range* ranges, int count, int own) : ranges(ranges), count(count), at(own) {}

    // An item, or -1 when all are taken.
    int64_t next() {
        for (; tried < count; tried++, at = at + 1 < count ? at + 1 : 0) {
            Range& range = ranges[at];
            if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
            const int64_t item = range.next.fetch_add(1, std::memory_order_relaxed);
            if (item < range.end) return item;
        }
        return -1;
    }

private:
    Range* const ranges;
    const int count;
    int at;
    int tried = 0;
};

// Runs `work(context, claims)` on this thread and on as many others of the process's team as make
// `threads`. Returns when all items are done; false, with nothing done, if the team is in use.
bool run_team(int64_t items, int threads, void (*work)(const void*, Claims&), const void* context);

// Calls `body(claims)`, which takes items until there are none, on up to `threads` threads.
template <class Body>
void share_out(int64_t items, int threads, const Body& body) {
    auto work = [](const void* context, Claims& claims) {
        (*static_cast<const Body*>(context))(claims);
    };
    const int most = int(std::min<int64_t>({threads, items, MOST_THREADS}));
    if (most > 1 && run_team(items, most, work, &body)) return;
    Range all{{0}, items};
    Claims claims(&all, 1, 0);
    body(claims);
}

// Calls `body(i)` for each i below `count`; on this thread alone if it is `small`.
template <class Body>
void for_each(int64_t count, bool small, int threads, const Body& body) {
    share_out(count, small ? 1 : threads, [&](Claims& claims) {
        for (int64_t i; (i = claims.next()) >= 0;) body(i);
    });
}

}  // namespace octavo
