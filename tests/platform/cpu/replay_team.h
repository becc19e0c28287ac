// The runtime's functions by name, and tests of the team by kernels of our own: work is dealt once, every operator sees what
// the one before wrote, several threads may submit, sleepers wake, and the end finishes what was submitted.
#ifndef REPLAY_TEAM_H
#define REPLAY_TEAM_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <string>
#include <thread>
#include <vector>

#include "headrace.h"

struct Copy {
    void *dst;
    const void *src;
    int64_t bytes;
};

struct Runtime {
    void *library;
    void *(*team_new)(int32_t, const int32_t *, int64_t, int64_t, int64_t);
    void (*team_free)(void *);
    uint64_t (*submit_tape)(void *, void *, const int32_t *, const Copy *, int64_t);
    uint64_t (*submit_kernel)(void *, hr_kernel, const void *, int64_t, const int32_t *);
    int32_t (*wait)(void *, uint64_t);
    void *(*tape_new)();
    int32_t (*tape_add)(void *, hr_kernel, const void *, int64_t);
    void (*tape_free)(void *);
    int32_t (*cpu_has)(int32_t);

    void *find(const std::string &name) const {
        void *found = dlsym(library, name.c_str());
        if (!found) exit((fprintf(stderr, "the library has no %s\n", name.c_str()), 2));
        return found;
    }
    template <class T> void set(T &function, const char *name) { function = (T)find(name); }
    explicit Runtime(void *from) : library(from) {
        set(team_new, "hr_team_new");
        set(team_free, "hr_team_free");
        set(submit_tape, "hr_submit_tape");
        set(submit_kernel, "hr_submit_kernel");
        set(wait, "hr_wait");
        set(tape_new, "hr_tape_new");
        set(tape_add, "hr_tape_add");
        set(tape_free, "hr_tape_free");
        set(cpu_has, "hr_cpu_has");
    }
};

inline int32_t level_of(const std::string &isa) {
    static const char *const NAMES[] = {"generic", "v3", "v4", "v4bf16", "dotprod", "amx"};
    for (int32_t i = 0; i < 6; i++)
        if (isa == NAMES[i]) return i;
    return isa == "amxemu" ? 0 : -1;  // it runs anywhere
}

struct TurnArgs {
    int64_t *marks, n, turn, *wrong;
};

// Every mark must be `turn`, whichever thread wrote it, and becomes turn + 1.
inline void turn_kernel(const void *args, hr_ctx *ctx) {
    const auto *a = (const TurnArgs *)args;
    for (int64_t i = hr_next(ctx); i < a->n; i = hr_next(ctx)) {
        if (a->marks[i] != a->turn) __atomic_fetch_add(a->wrong, 1, __ATOMIC_RELAXED);
        a->marks[i] = a->turn + 1;
    }
}

constexpr int64_t PHASES = 7, MOST_PARTS = 8;

struct PhaseArgs {
    int64_t (*done)[MOST_PARTS], *wrong;
};

// Each part of a phase is done once, when all parts of the one before it have been; a counter of its own starts at zero.
inline void phase_kernel(const void *args, hr_ctx *ctx) {
    const auto *a = (const PhaseArgs *)args;
    bool good = ctx->phase < PHASES && ctx->part < ctx->parts && hr_next_of(ctx, ctx->part) == 0;
    for (int32_t part = 0; good && ctx->phase && part < ctx->parts; part++)
        good = __atomic_load_n(&a->done[ctx->phase - 1][part], __ATOMIC_RELAXED) == 1;
    if (good && __atomic_fetch_add(&a->done[ctx->phase][ctx->part], 1, __ATOMIC_RELAXED)) good = false;
    if (!good) __atomic_fetch_add(a->wrong, 1, __ATOMIC_RELAXED);
    for (int spin = 0; spin < (ctx->part + 1) * 500; spin++) __asm__ volatile("");  // parts of unequal length
    if (ctx->phase + 1 < PHASES) hr_again(ctx);
}

// Runs of one tape of kernels with phases. Returns how often something was not as it should be.
inline int64_t phases(const Runtime &lib, void *team, int parts, int runs) {
    constexpr int64_t KERNELS = 5;
    static int64_t done[KERNELS][PHASES][MOST_PARTS], zero[KERNELS][PHASES][MOST_PARTS];
    int64_t wrong = 0;
    int32_t sizes[HR_NUM_SIZES] = {};
    void *tape = lib.tape_new();
    for (auto &kernel : done) {
        PhaseArgs args = {kernel, &wrong};
        lib.tape_add(tape, phase_kernel, &args, sizeof(args));
    }
    Copy reset = {done, zero, sizeof(done)};
    for (int i = 0; i < runs; i++) {
        lib.wait(team, lib.submit_tape(team, tape, sizes, &reset, 1));
        for (auto &kernel : done)
            for (auto &phase : kernel)
                for (int part = 0; part < parts; part++) wrong += phase[part] != 1;
    }
    lib.tape_free(tape);
    return wrong;
}

inline void nap(long microseconds) {
    timespec t = {0, microseconds * 1000};
    nanosleep(&t, nullptr);
}

constexpr int64_t MARKS = 64, TURNS = 40;

// Runs of one tape of turns, waited for at times only. Returns how often a mark was not as expected.
inline int64_t turns(const Runtime &lib, void *team, int runs, bool naps) {
    std::vector<int64_t> marks(MARKS), zero(MARKS);
    int64_t wrong = 0;
    int32_t sizes[HR_NUM_SIZES] = {};
    void *tape = lib.tape_new();
    for (int64_t turn = 0; turn < TURNS; turn++) {
        TurnArgs args = {marks.data(), MARKS, turn, &wrong};
        lib.tape_add(tape, turn_kernel, &args, sizeof(args));
    }
    Copy reset = {marks.data(), zero.data(), MARKS * 8};
    uint64_t ticket = 0;
    for (int i = 0; i < runs; i++) {
        ticket = lib.submit_tape(team, tape, sizes, &reset, 1);
        if (i % 8 == 0) lib.wait(team, ticket);
        if (naps && i % 16 == 0) nap(300);
    }
    lib.wait(team, ticket);
    for (int64_t mark : marks) wrong += mark != TURNS;
    lib.tape_free(tape);
    return wrong;
}

template <class Tell> void test_team(const Runtime &lib, Tell tell) {
    for (int threads = 1; threads <= 4; threads++)
        for (int64_t spin : {0, 20000}) {
            void *team = lib.team_new(threads, nullptr, 1 << 12, 1 << 12, spin);
            tell(team && turns(lib, team, 60, true) == 0, "turns in order");
            tell(phases(lib, team, threads, 60) == 0, "phases in order");
            lib.team_free(team);
        }
    void *team = lib.team_new(2, nullptr, 1 << 12, 1 << 12, 1000);
    int64_t wrong[3] = {};
    std::vector<std::thread> callers;
    for (int64_t &count : wrong) callers.emplace_back([&] { count = turns(lib, team, 40, false); });
    for (std::thread &caller : callers) caller.join();
    tell(wrong[0] + wrong[1] + wrong[2] == 0, "several threads submit and wait");
    lib.team_free(team);
    for (int i = 0; i < 30; i++) {  // ends that come at once, and with work under way
        std::vector<int64_t> marks(MARKS);
        int64_t bad = 0;
        team = lib.team_new(1 + i % 3, nullptr, 1 << 12, 1 << 12, i % 2 ? 0 : 5000);
        for (int64_t turn = 0; turn < i; turn++) {
            TurnArgs args = {marks.data(), MARKS, turn, &bad};
            lib.submit_kernel(team, turn_kernel, &args, sizeof(args), nullptr);
        }
        lib.team_free(team);
        for (int64_t mark : marks) bad += mark != i;
        tell(bad == 0, "the end finishes what was submitted");
    }
}
#endif
