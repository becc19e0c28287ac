// Memory that the ranks of one machine share: one line per rank, then two slots per rank.
//
// A rank copies its part into its slot, writes the turn to its line, waits until every rank has done so, and reads all
// slots in rank order: sums have the same bits on every rank and in every run. The next turn uses the other slot. The
// turn after that can use the first again, because no rank reaches a turn before it has read the slots of the previous
// one.
#ifndef HEADRACE_SEGMENT_H
#define HEADRACE_SEGMENT_H
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

#include "headrace.h"
#include "sync.h"

extern "C" {

// Errors of a collective in *hr_ctx.error: one of these plus the rank it concerns.
enum { HR_PEER_GONE = 3000, HR_PEER_LATE = 4000, HR_PEER_DIFFERS = 5000, HR_PEER_FAILED = 6000 };

typedef struct hr_segment {
    char *memory;
    int64_t slot_bytes;
    int64_t timeout_ns, spin_ns;
    int32_t rank, size;
} hr_segment;
HR_LAYOUT(hr_segment, memory, slot_bytes, timeout_ns, spin_ns, rank, size);
}

namespace {

struct alignas(128) Line {
    std::atomic<u32> turn;      // of the last part that was written to a slot; a futex of all processes
    std::atomic<u32> sleepers;
    std::atomic<u32> failed;    // the rank takes part in no more collectives
    int32_t pid;                // 0: unknown
    int64_t bytes[2];           // sizes of the parts of even and odd turns
};
static_assert(sizeof(Line) == 128, "Python writes into lines");

constexpr int64_t NAP_NS = 10000000;

inline Line *line_of(const hr_segment *s, int rank) { return (Line *)s->memory + rank; }

inline char *slot_of(const hr_segment *s, u32 turn, int rank) {
    char *slots = s->memory + (int64_t)s->size * (int64_t)sizeof(Line);
    return slots + ((int64_t)(turn & 1) * s->size + rank) * s->slot_bytes;
}

#ifdef __linux__
// Whether a process has ended. One that has not been waited for yet (a zombie) still has its number.
inline bool ended(int32_t pid) {
    char path[32], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return true;
    ssize_t n = read(file, text, sizeof(text) - 1);
    close(file);
    if (n <= 0) return true;
    text[n] = 0;
    const char *name_end = nullptr;
    for (const char *p = text; *p; p++)
        if (*p == ')') name_end = p;
    char state = name_end && name_end[1] ? name_end[2] : 'R';
    return state == 'Z' || state == 'X';
}
inline void sleep_shared(std::atomic<u32> *word, u32 seen, const timespec *timeout) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout, nullptr, 0);
}
inline void wake_shared(std::atomic<u32> *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
#else
inline bool ended(int32_t) { return false; }
inline void sleep_shared(std::atomic<u32> *word, u32 seen, const timespec *timeout) { sleep_on(word, seen, timeout); }
inline void wake_shared(std::atomic<u32> *) {}
#endif

inline void announce(Line *line, u32 turn) {
    line->turn.store(turn);
    if (line->sleepers.load()) wake_shared(&line->turn);
}

// Wait until the rank has reached the turn. Returns 0 or an error.
inline int32_t await_rank(const hr_segment *s, int rank, u32 turn) {
    Line *line = line_of(s, rank);
    auto there = [&] { return (int32_t)(line->turn.load(std::memory_order_acquire) - turn) >= 0; };
    if (there()) return 0;
    u64 start = now_ns();
    while (now_ns() - start < (u64)s->spin_ns)
        for (int i = 0; i < 32; i++) {
            if (there()) return 0;
            relax();
        }
    const timespec nap = {0, NAP_NS};
    for (;;) {
        u32 seen = line->turn.load();
        if ((int32_t)(seen - turn) >= 0) return 0;
        if (line->failed.load()) return HR_PEER_FAILED + rank;
        line->sleepers.fetch_add(1);
        sleep_shared(&line->turn, seen, &nap);
        line->sleepers.fetch_sub(1);
        if (there()) return 0;
        if (line->pid && ended(line->pid)) return there() ? 0 : HR_PEER_GONE + rank;
        if ((int64_t)(now_ns() - start) > s->timeout_ns) return HR_PEER_LATE + rank;
    }
}

// Announce that this rank's part of `bytes` is in its slot, and wait for all others. Called by one thread. Returns 0 or
// an error.
inline int32_t meet(const hr_segment *s, u32 turn, int64_t bytes) {
    Line *own = line_of(s, s->rank);
    own->bytes[turn & 1] = bytes;
    announce(own, turn);
    int32_t error = 0;
    for (int rank = 0; rank < s->size && !error; rank++) {
        error = await_rank(s, rank, turn);
        if (!error && line_of(s, rank)->bytes[turn & 1] != bytes) error = HR_PEER_DIFFERS + rank;
    }
    if (error) own->failed.store(1);
    return error;
}

// Call `put(slot, begin, bytes)` and then `take(turn, begin, bytes)` for every part of `bytes` that fits a slot;
// `begin` is in bytes. Both are called in every part of the team. Odd phases wait for the other ranks: no other kernel
// waits.
template <class Put, class Take>
inline void exchange(const hr_segment *s, hr_ctx *ctx, int64_t bytes, Put put, Take take) {
    Line *own = line_of(s, s->rank);
    u32 turn = own->turn.load();
    if (*ctx->error) {  // from an operator before this one, or from this one's last phase
        if (ctx->phase == 0 && ctx->part == 0) own->failed.store(1);
        return;
    }
    auto size = [&](int64_t begin) { return bytes - begin < s->slot_bytes ? bytes - begin : s->slot_bytes; };
    int64_t begin = ctx->phase / 2 * s->slot_bytes;  // of the part written now; the part of the phase before is read
    if (ctx->phase % 2) {
        if (ctx->part == 0) {
            int32_t error = meet(s, turn + 1, size(begin));
            if (error) *ctx->error = error;
        }
        return hr_again(ctx);
    }
    if (begin) take(turn, begin - s->slot_bytes, size(begin - s->slot_bytes));
    if (begin >= bytes) return;
    put(slot_of(s, turn + 1, s->rank), begin, size(begin));
    hr_again(ctx);
}

}  // namespace
#endif
