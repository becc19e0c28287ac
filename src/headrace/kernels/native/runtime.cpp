// The runtime: a team of threads that executes submitted jobs in order.
//
// One native thread, the team's first, takes jobs from a queue; each job is host copies, then a tape (or one kernel) that the
// whole team runs with a barrier after every operator, then host copies. Nobody in Python waits between two jobs. Waiting
// threads spin for a bounded time and then sleep on a futex, since other processes need the cores too.
#include "headrace.h"
#include "sync.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <new>
namespace {

struct Op {
    hr_kernel fn;
    void *args;
    u64 ns;
};

}  // namespace

extern "C" {

typedef struct hr_copy {
    void *dst;
    const void *src;
    int64_t bytes;
} hr_copy;

struct hr_tape {
    Op *ops;
    int64_t count, room;
    u64 runs;
    int32_t profile;
};
}

namespace {

struct Job {
    Job *next;
    hr_tape *tape;   // owned by the caller, or null
    Op single;       // where fn is set: one kernel, its arguments behind this struct
    int32_t sizes[HR_NUM_SIZES];
    int64_t copies;
    hr_copy *copy;
};

struct Team;
struct Member {
    Team *team;
    pthread_t thread;
    hr_ctx ctx;
    int cpu;
};

struct Team {
    int n;
    u64 spin_ns;
    Member *members;
    char *arena;
    int64_t arena_bytes;
    Barrier barrier;
    alignas(64) std::atomic<u64> done{0};
    Event finished;
    Event submitted;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Job *head = nullptr, *tail = nullptr;
    u64 tickets = 0;
    bool closed = false;
    pid_t process = getpid();  // whose the threads are: a fork has none
    std::atomic<u64> busy_ns{0};
    Event started;
    bool failed = false;  // some thread could not be started
    alignas(64) Job *job = nullptr;  // what the team runs now; null: the end
    alignas(64) int64_t counters[2][8] = {};
    alignas(64) int32_t error = 0;
};

void run_ops(Member *m, Job *job) {
    Team *team = m->team;
    Op *ops = job->tape ? job->tape->ops : &job->single;
    int64_t count = job->tape ? job->tape->count : 1;
    bool profile = job->tape && job->tape->profile && m->ctx.tid == 0;
    m->ctx.sizes = job->sizes;
    u64 start = profile ? now_ns() : 0;
    for (int64_t i = 0; i < count; i++) {
        m->ctx.counter = team->counters[i & 1];
        ops[i].fn(ops[i].args, &m->ctx);
        // The other counter was last used an operator ago and is next used an operator from now.
        if (m->ctx.tid == 0) team->counters[(i + 1) & 1][0] = 0;
        team->barrier.wait((u32)team->n, team->spin_ns);
        if (profile) {
            u64 t = now_ns();
            ops[i].ns += t - start;
            start = t;
        }
    }
}

// The next job; null once the team is closed and all have been taken.
Job *take(Team *team) {
    for (;;) {
        u32 seen = team->submitted.word.load();
        pthread_mutex_lock(&team->lock);
        Job *job = team->head;
        if (job) {
            team->head = job->next;
            if (!team->head) team->tail = nullptr;
        }
        bool end = !job && team->closed;
        pthread_mutex_unlock(&team->lock);
        if (job || end) return job;
        team->submitted.await(seen, team->spin_ns);
    }
}

void *lead(Member *m) {
    Team *team = m->team;
    while (Job *job = take(team)) {
        u64 start = now_ns();
        for (int64_t i = 0; i < job->copies; i++) memcpy(job->copy[i].dst, job->copy[i].src, (size_t)job->copy[i].bytes);
        // Without an operator there is no barrier at the end, which must come before the job is freed.
        if ((job->tape && job->tape->count) || job->single.fn) {
            team->job = job;
            team->counters[0][0] = team->counters[1][0] = 0;
            team->barrier.wait((u32)team->n, team->spin_ns);
            run_ops(m, job);
            if (job->tape) job->tape->runs++;
        }
        free(job);
        team->busy_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
        team->done.fetch_add(1);
        team->finished.advance();
    }
    team->job = nullptr;
    team->barrier.wait((u32)team->n, team->spin_ns);
    return nullptr;
}

void *follow(Member *m) {
    Team *team = m->team;
    for (;;) {
        team->barrier.wait((u32)team->n, team->spin_ns);
        Job *job = team->job;
        if (!job) return nullptr;
        run_ops(m, job);
    }
}

void *member_main(void *arg) {
    Member *m = (Member *)arg;
    m->team->started.await(0, 0);
    if (m->team->failed) return nullptr;
#ifdef __linux__
    char name[16] = "hr-cpu-0";
    name[7] = (char)('0' + m->ctx.tid % 10);
    pthread_setname_np(pthread_self(), name);
    if (m->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)m->cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    }
#endif
    return m->ctx.tid == 0 ? lead(m) : follow(m);
}

// In a forked process nobody takes jobs, and the lock may be held for ever.
bool forked(const Team *team) { return getpid() != team->process; }

u64 submit(Team *team, Job *job) {
    u64 ticket = 0;
    if (!forked(team)) {
        pthread_mutex_lock(&team->lock);
        if (!team->closed) {
            if (team->tail) team->tail->next = job;
            else team->head = job;
            team->tail = job;
            ticket = ++team->tickets;
        }
        pthread_mutex_unlock(&team->lock);
    }
    if (ticket) team->submitted.advance();
    else free(job);
    return ticket;
}

void destroy(Team *team) {
    if (team->arena) munmap(team->arena, (size_t)team->arena_bytes);
    free(team->members);
    team->~Team();
    free(team);
}

// Threads wait until all have been started, and end at once where one could not be.
bool start_members(Team *team) {
    int count = 0;
    while (count < team->n && !pthread_create(&team->members[count].thread, nullptr, member_main, &team->members[count])) count++;
    team->failed = count < team->n;
    team->started.advance();
    for (int i = 0; team->failed && i < count; i++) pthread_join(team->members[i].thread, nullptr);
    return !team->failed;
}

Job *new_job(const int32_t *sizes, const hr_copy *copies, int64_t ncopies, const void *args, int64_t arg_bytes) {
    size_t head = (sizeof(Job) + 63) & ~(size_t)63, args_room = ((size_t)arg_bytes + 63) & ~(size_t)63;
    size_t total = head + args_room + (size_t)ncopies * sizeof(hr_copy);
    char *mem = (char *)aligned_alloc(64, (total + 63) & ~(size_t)63);
    if (!mem) return nullptr;
    memset(mem, 0, head);
    Job *job = (Job *)mem;
    if (sizes) memcpy(job->sizes, sizes, sizeof(job->sizes));
    if (arg_bytes) memcpy(mem + head, args, (size_t)arg_bytes);
    job->single.args = mem + head;
    job->copies = ncopies;
    job->copy = (hr_copy *)(mem + head + args_room);
    if (ncopies) memcpy(job->copy, copies, (size_t)ncopies * sizeof(hr_copy));
    return job;
}

}  // namespace

extern "C" {

void hr_barrier(hr_ctx *ctx) {
    Team *team = (Team *)ctx->team;
    if (team) team->barrier.wait((u32)team->n, team->spin_ns);
}

// Start `threads` threads; cpus[i] >= 0 pins thread i. Scratch is virtual until touched. Null: no memory or no threads.
HR_EXPORT void *hr_team_new(int32_t threads, const int32_t *cpus, int64_t scratch, int64_t shared, int64_t spin_ns) {
    void *mem = aligned_alloc(64, (sizeof(Team) + 63) & ~(size_t)63);
    Team *team = mem ? new (mem) Team() : nullptr;
    if (!team) return nullptr;
    team->n = threads;
    team->spin_ns = (u64)spin_ns;
    team->members = (Member *)calloc((size_t)threads, sizeof(Member));
    team->arena_bytes = shared + scratch * threads;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *arena = mmap(nullptr, (size_t)team->arena_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    team->arena = arena == MAP_FAILED ? nullptr : (char *)arena;
    if (!team->arena || !team->members) return destroy(team), nullptr;
    for (int i = 0; i < threads; i++) {
        Member *m = &team->members[i];
        m->team = team;
        m->cpu = cpus ? cpus[i] : -1;
        m->ctx = hr_ctx{nullptr,     i,      threads,          team,        team->arena + shared + scratch * i, scratch,
                        team->arena, shared, team->counters[0], &team->error};
    }
    sigset_t all, old;
    sigfillset(&all);  // signals are Python's, but for those that a thread brings upon itself: they must be seen
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    bool good = start_members(team);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return good ? team : (destroy(team), nullptr);
}

// Finish what was submitted, then end the threads. The handle stays good: what asks for a ticket finds it done, what submits gets
// none. Twice is harmless; in a forked process it does nothing.
HR_EXPORT void hr_team_close(void *handle) {
    Team *team = (Team *)handle;
    if (forked(team)) return;
    pthread_mutex_lock(&team->lock);
    bool again = team->closed;
    team->closed = true;
    pthread_mutex_unlock(&team->lock);
    if (again) return;
    team->submitted.advance();
    for (int i = 0; i < team->n; i++) pthread_join(team->members[i].thread, nullptr);
}

// Close, and forget the handle: nobody may be using it.
HR_EXPORT void hr_team_free(void *handle) {
    hr_team_close(handle);
    destroy((Team *)handle);
}

// Copies, then the tape where given. Returns the ticket to wait for; 0 where memory is short, or the team closed or forked.
HR_EXPORT u64 hr_submit_tape(void *team, hr_tape *tape, const int32_t *sizes, const hr_copy *copies, int64_t ncopies) {
    Job *job = new_job(sizes, copies, ncopies, nullptr, 0);
    if (!job) return 0;
    job->tape = tape;
    return submit((Team *)team, job);
}

// One kernel over the whole team; its arguments are copied.
HR_EXPORT u64 hr_submit_kernel(void *team, hr_kernel fn, const void *args, int64_t arg_bytes, const int32_t *sizes) {
    Job *job = new_job(sizes, nullptr, 0, args, arg_bytes);
    if (!job) return 0;
    job->single.fn = fn;
    return submit((Team *)team, job);
}

HR_EXPORT int32_t hr_done(void *team, u64 ticket) { return ((Team *)team)->done.load() >= ticket; }

// Block until the ticket's job is done. Returns the team's error, 0 for none.
HR_EXPORT int32_t hr_wait(void *handle, u64 ticket) {
    Team *team = (Team *)handle;
    for (;;) {
        u32 seen = team->finished.word.load();
        if (team->done.load() >= ticket) return __atomic_load_n(&team->error, __ATOMIC_RELAXED);
        if (forked(team)) return HR_ERROR_FORKED;
        team->finished.await(seen, 0);
    }
}

// Nanoseconds in which the team had a job, since it was made.
HR_EXPORT u64 hr_busy_ns(void *team) { return ((Team *)team)->busy_ns.load(); }

HR_EXPORT hr_tape *hr_tape_new(void) { return (hr_tape *)calloc(1, sizeof(hr_tape)); }

// Append an operator; its arguments are copied. Returns 0, or -1 where memory is short. Not while the tape runs.
HR_EXPORT int32_t hr_tape_add(hr_tape *tape, hr_kernel fn, const void *args, int64_t arg_bytes) {
    if (tape->count == tape->room) {
        int64_t room = tape->room ? 2 * tape->room : 64;
        Op *ops = (Op *)realloc(tape->ops, (size_t)room * sizeof(Op));
        if (!ops) return -1;
        tape->ops = ops;
        tape->room = room;
    }
    void *copy = aligned_alloc(64, ((size_t)arg_bytes + 63) & ~(size_t)63);
    if (!copy) return -1;
    memcpy(copy, args, (size_t)arg_bytes);
    tape->ops[tape->count++] = Op{fn, copy, 0};
    return 0;
}

HR_EXPORT void hr_tape_free(hr_tape *tape) {
    for (int64_t i = 0; i < tape->count; i++) free(tape->ops[i].args);
    free(tape->ops);
    free(tape);
}

// Measure each operator from now on (or stop), from zero.
HR_EXPORT void hr_tape_profile(hr_tape *tape, int32_t on) {
    for (int64_t i = 0; i < tape->count; i++) tape->ops[i].ns = 0;
    tape->runs = 0;
    tape->profile = on;
}

// Nanoseconds of each operator over the runs since profiling began; returns the runs.
HR_EXPORT u64 hr_tape_times(hr_tape *tape, u64 *ns) {
    for (int64_t i = 0; i < tape->count; i++) ns[i] = tape->ops[i].ns;
    return tape->runs;
}

typedef struct hr_copy_blocks_args {
    char *const *buffers;    // [count], each indexed by block
    const int64_t *bytes;    // [count], of a block
    const int64_t *pairs;    // [pairs][2]: source, destination
    int64_t count, num_pairs;
} hr_copy_blocks_args;

// A kernel: copy whole blocks; all sources are read before a destination is written.
HR_EXPORT void hr_copy_blocks(const void *args, hr_ctx *ctx) {
    const hr_copy_blocks_args *a = (const hr_copy_blocks_args *)args;
    for (int64_t i = ctx->tid; i < a->count; i += ctx->nthreads) {
        int64_t bytes = a->bytes[i];
        if (a->num_pairs * bytes > ctx->scratch_bytes) {
            *ctx->error = HR_ERROR_SCRATCH;
            return;
        }
        for (int64_t p = 0; p < a->num_pairs; p++)
            memcpy(ctx->scratch + p * bytes, a->buffers[i] + a->pairs[2 * p] * bytes, (size_t)bytes);
        for (int64_t p = 0; p < a->num_pairs; p++)
            memcpy(a->buffers[i] + a->pairs[2 * p + 1] * bytes, ctx->scratch + p * bytes, (size_t)bytes);
    }
}
}
