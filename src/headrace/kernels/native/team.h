// The team's data: what its threads share, and the jobs that wait for it. `runtime.cpp` runs them, `team.cpp` starts and
// ends the threads.
#ifndef HEADRACE_TEAM_H
#define HEADRACE_TEAM_H
#include "headrace.h"
#include "sync.h"
#include "tape.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>

extern "C" {

typedef struct hr_copy {
    void *dst;
    const void *src;
    int64_t bytes;
} hr_copy;
HR_LAYOUT(hr_copy, dst, src, bytes);
}

namespace hr_runtime {

struct Job {
    Job *next;
    hr_tape *tape;   // owned by the caller, or null
    Op single;       // if fn is set: one kernel, its arguments behind this struct
    int32_t sizes[HR_NUM_SIZES];
    int64_t copies;
    hr_copy *copy;
};

struct Team;
struct Member {
    Team *team;
    pthread_t thread;
    hr_ctx ctx;
    int cpu, index;
};

constexpr u64 HR_BUSY_KEPT = 1024;

struct alignas(64) Part {
    std::atomic<u32> begun{0};  // the last turn of this part that a thread has taken
};

struct Team {
    int n;
    u64 spin_ns;
    Member *members;
    Part *parts;
    char *arena;
    int64_t arena_bytes;

    // A phase is a turn. Its data is beside the word that threads watch, in one cache line. The only thread that works
    // at that time writes it before it changes the word.
    alignas(64) Event turn;
    std::atomic<u32> active{0};  // the last turn that has parts to run
    int32_t phase = 0;
    Op *op = nullptr, *last = nullptr;
    int32_t *sizes = nullptr;
    std::atomic<bool> ended{false};
    bool profile = false;
    alignas(64) std::atomic<int> parts_done{0};
    alignas(64) Job *job = nullptr;
    u64 job_start = 0, op_start = 0;
    int64_t *counters;

    alignas(64) std::atomic<u64> done{0};
    Event finished;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Job *head = nullptr, *tail = nullptr;
    u64 tickets = 0;
    bool idle = true;  // no job runs; the thread that changes this under the lock begins the next job
    bool closed = false;
    pid_t process = getpid();  // the process of the threads: a forked process has none
    std::atomic<u64> busy_ns{0};
    std::atomic<u64> busy_at[HR_BUSY_KEPT]{};  // busy_ns at the end of the latest jobs, by ticket
    Event started;
    bool failed = false;  // some thread could not be started
    alignas(64) int32_t error = 0;
};

// What a thread does until the team has ended.
void work(Member *m);

// In a forked process no thread takes jobs, and the lock may never be released.
inline bool forked(const Team *team) { return getpid() != team->process; }

}  // namespace hr_runtime
#endif
