// Waiting of the team's threads: spin for a bounded time, then sleep on a futex.
#ifndef HEADRACE_SYNC_H
#define HEADRACE_SYNC_H
#include <stdint.h>
#include <time.h>

#include <atomic>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Kernels are compiled once per instruction set: names that no other file sees keep the linker from taking another copy's
// code for theirs.
#ifdef HR_ISA
namespace {
#else
namespace hr_runtime {
#endif

using u32 = uint32_t;
using u64 = uint64_t;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

inline u64 now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

#ifdef __linux__
inline void sleep_on(std::atomic<u32> *word, u32 seen, const timespec *timeout) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout, nullptr, 0);
}
inline void wake_all(std::atomic<u32> *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }
#else
inline void sleep_on(std::atomic<u32> *word, u32 seen, const timespec *) {
    timespec nap = {0, 50000};
    if (word->load() == seen) nanosleep(&nap, nullptr);
}
inline void wake_all(std::atomic<u32> *) {}
#endif

// A counter that threads can wait for: a change of the word wakes the sleepers.
struct alignas(8) Event {
    std::atomic<u32> word{0};
    std::atomic<u32> sleepers{0};

    void advance() {
        word.fetch_add(1);
        if (sleepers.load()) wake_all(&word);
    }
    // Wait until the word differs from `seen` or spin_ns + timeout have passed.
    void await(u32 seen, u64 spin_ns, const timespec *timeout = nullptr) {
        if (spin_ns) {
            u64 end = now_ns() + spin_ns;
            do {
                for (int i = 0; i < 32; i++) {
                    if (word.load(std::memory_order_acquire) != seen) return;
                    relax();
                }
            } while (now_ns() < end);
        }
        sleepers.fetch_add(1);
        while (word.load() == seen) {
            sleep_on(&word, seen, timeout);
            if (timeout) break;
        }
        sleepers.fetch_sub(1);
    }
};

}
#endif
