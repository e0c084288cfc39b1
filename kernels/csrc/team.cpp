// The process's one team: see team.h.
#include "team.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

using std::memory_order_acquire;
using std::memory_order_acq_rel;
using std::memory_order_relaxed;

// Longer than it takes from one step to the next: to be woken costs more than to look on.
constexpr auto WATCHING = std::chrono::milliseconds(3);
constexpr int LOOKS = 64;       // between two looks at the clock
constexpr int PATIENCE = 2000;  // looks before the core is offered to others, again and again

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The job's number, whether threads may still enter it, and how many have entered and are inside:
// one word, so that a thread enters the job that it has seen or none.
struct Gate {
    static constexpr uint64_t INSIDE = 1, ENTERED = 1 << 15, OPEN = 1 << 30;
    static constexpr uint64_t MANY = (1 << 15) - 1;

    uint64_t word;

    uint64_t job() const { return word >> 32; }
    bool open() const { return word & OPEN; }
    int entered() const { return int(word / ENTERED & MANY); }
    bool empty() const { return (word & MANY) == 0; }
};

class Team {
public:
    bool run(int64_t items, int threads, void (*work)(const void*, Claims&), const void* context) {
        std::unique_lock<std::mutex> alone(busy, std::try_to_lock);
        if (!alone) return false;
        hire(threads - 1);
        for (int r = 0; r < threads; r++) {
            ranges[r].next.store(items * r / threads, memory_order_relaxed);
            ranges[r].end = items * (r + 1) / threads;
        }
        this->work = work;
        this->context = context;
        seats.store(threads, memory_order_relaxed);
        const uint64_t number = Gate{gate.load(memory_order_relaxed)}.job() + 1;
        gate.store(number << 32 | Gate::OPEN);
        if (sleeping.load() > 0) {
            std::lock_guard<std::mutex> lock(bedroom);
            wake.notify_all();
        }
        Claims claims(ranges, threads, 0);
        work(context, claims);
        gate.fetch_and(~Gate::OPEN, memory_order_acq_rel);
        for (int looks = 0; !Gate{gate.load(memory_order_acquire)}.empty(); looks++)
            looks < PATIENCE ? pause() : std::this_thread::yield();
        return true;
    }

private:
    void hire(int helpers) {
        try {
            for (; hired < helpers; hired++) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
            // Those there are do the work.
        }
    }

    void serve() {
        for (uint64_t done = 0;;) {
            const Gate seen = await(done);
            done = seen.job();
            join(seen);
        }
    }

    // The gate of an open job that is not `done`.
    Gate await(uint64_t done) {
        auto found = [&](Gate now) { return now.open() && now.job() != done; };
        const auto until = std::chrono::steady_clock::now() + WATCHING;
        int looks = 0;
        do {
            for (int look = 0; look < LOOKS; look++, looks++) {
                const Gate now{gate.load(memory_order_acquire)};
                if (found(now)) return now;
                looks < PATIENCE ? pause() : std::this_thread::yield();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> lock(bedroom);
        sleeping++;
        Gate now{};
        wake.wait(lock, [&] { return found(now = Gate{gate.load()}); });
        sleeping--;
        return now;
    }

    void join(Gate seen) {
        const uint64_t job = seen.job();
        while (seen.open() && seen.job() == job) {
            const int seat = seen.entered() + 1;
            const int count = seats.load(memory_order_relaxed);
            if (seat >= count) return;
            if (!gate.compare_exchange_weak(seen.word, seen.word + Gate::ENTERED + Gate::INSIDE,
                                            memory_order_acq_rel, memory_order_acquire))
                continue;
            Claims claims(ranges, count, seat);
            work(context, claims);
            gate.fetch_sub(Gate::INSIDE, memory_order_acq_rel);
            return;
        }
    }

    std::mutex busy;
    // The job. Written by its owner while the gate is shut and nobody is inside.
    Range ranges[MOST_THREADS];
    void (*work)(const void*, Claims&) = nullptr;
    const void* context = nullptr;
    std::atomic<int> seats{0};
    alignas(64) std::atomic<uint64_t> gate{0};

    alignas(64) std::atomic<int> sleeping{0};
    std::mutex bedroom;
    std::condition_variable wake;
    int hired = 0;
};

}  // namespace

bool run_team(int64_t items, int threads, void (*work)(const void*, Claims&),
              const void* context) {
    // Never destroyed: its threads may be looking at it when the process ends.
    static Team* const team = new Team;
    return team->run(items, threads, work, context);
}

}  // namespace octavo
