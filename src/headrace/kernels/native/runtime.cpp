// The runtime: a team of threads that executes submitted jobs in order.
//
// A job is host copies, then a tape (or one kernel). Operators run in phases of as many parts as there are threads. A
// thread runs its own part, and a little later parts that no thread has begun. The thread that ends a phase's last part
// begins the next phase, and the thread that ends a job takes the next one from the queue. So the team waits for a
// thread only if it is in the middle of a part, because the loop, the server and others need the cores, too. Python
// does not have to act between two jobs. Idle threads spin for a bounded time and then sleep on a futex.
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
HR_LAYOUT(hr_copy, dst, src, bytes);

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
    Event started;
    bool failed = false;  // some thread could not be started
    alignas(64) int32_t error = 0;
};

void begin_turn(Team *team) {
    // Lines that are not written stay in every cache.
    for (int64_t *c = team->counters; c < team->counters + team->n * HR_COUNTER_STRIDE; c += HR_COUNTER_STRIDE)
        if (*c) *c = 0;
    team->parts_done.store(0, std::memory_order_relaxed);
    team->active.store(team->turn.word.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    team->turn.advance();
}

void end_job(Team *team, Job *job) {
    if (job->tape) job->tape->runs++;
    team->busy_ns.fetch_add(now_ns() - team->job_start, std::memory_order_relaxed);
    free(job);
    team->done.fetch_add(1);
    team->finished.advance();
}

// Take the next job, for which the caller is then responsible; null if there is none: the team is then idle.
Job *take(Team *team) {
    pthread_mutex_lock(&team->lock);
    Job *job = team->head;
    if (job) {
        team->head = job->next;
        if (!team->head) team->tail = nullptr;
    }
    team->idle = !job;
    bool end = !job && team->closed;
    pthread_mutex_unlock(&team->lock);
    if (end) {
        team->ended.store(true);
        team->turn.advance();
    }
    return job;
}

// Begin jobs until one has operators, which the team then runs, or until none is left.
void begin_jobs(Team *team, Job *job) {
    for (; job; job = take(team)) {
        team->job_start = now_ns();
        for (int64_t i = 0; i < job->copies; i++)
            memcpy(job->copy[i].dst, job->copy[i].src, (size_t)job->copy[i].bytes);
        int64_t count = job->tape ? job->tape->count : job->single.fn ? 1 : 0;
        team->job = job;
        team->sizes = job->sizes;
        team->op = job->tape ? job->tape->ops : &job->single;
        team->last = team->op + count - 1;
        team->phase = 0;
        team->profile = job->tape && job->tape->profile;
        team->op_start = team->profile ? now_ns() : 0;
        if (count) return begin_turn(team);
        end_job(team, job);
    }
}

// Called by the thread that ended the last part of a phase.
void end_turn(Team *team, bool again) {
    if (again) {
        team->phase++;
        return begin_turn(team);
    }
    if (team->profile) {
        u64 now = now_ns();
        team->op->ns += now - team->op_start;
        team->op_start = now;
    }
    team->phase = 0;
    if (team->op++ < team->last) return begin_turn(team);
    end_job(team, team->job);
    begin_jobs(team, take(team));
}

void run_part(Member *m, int part) {
    Team *team = m->team;
    const Op *op = team->op;
    m->ctx.sizes = team->sizes;
    m->ctx.part = part;
    m->ctx.phase = team->phase;
    m->ctx.again = 0;
    op->fn(op->args, &m->ctx);
    if (team->parts_done.fetch_add(1, std::memory_order_acq_rel) + 1 == team->n) end_turn(team, m->ctx.again);
}

// Run a part of turn t unless another thread has begun it. A turn ends when all its parts have been run, so the turn
// cannot change while a part can be taken; a late thread finds that every part has begun this turn or a later one.
void take_part(Member *m, int part, u32 t) {
    std::atomic<u32> &last = m->team->parts[part].begun;
    u32 begun = last.load(std::memory_order_acquire);
    if ((int32_t)(t - begun) > 0 && last.compare_exchange_strong(begun, t)) run_part(m, part);
}

// Wait until the turn has ended; meanwhile run parts that their threads have not begun.
void await_turn(Member *m, u32 t) {
    Team *team = m->team;
    u64 start = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (team->turn.word.load(std::memory_order_acquire) != t) return;
            relax();
        }
        for (int i = 1; i < team->n && team->active.load(std::memory_order_acquire) == t; i++)
            take_part(m, (m->index + i) % team->n, t);
        u64 now = now_ns();
        if (!start) start = now;
        if (now - start >= team->spin_ns) break;
    }
    team->turn.await(t, 0);
}

void work(Member *m) {
    Team *team = m->team;
    for (;;) {
        u32 t = team->turn.word.load(std::memory_order_acquire);
        if (team->ended.load(std::memory_order_relaxed)) return;
        if (team->active.load(std::memory_order_acquire) == t) take_part(m, m->index, t);
        await_turn(m, t);
    }
}

void *member_main(void *arg) {
    Member *m = (Member *)arg;
    m->team->started.await(0, 0);
    if (m->team->failed) return nullptr;
    work(m);
    return nullptr;
}

// In a forked process no thread takes jobs, and the lock may never be released.
bool forked(const Team *team) { return getpid() != team->process; }

// If the team is idle, the caller begins the job: it runs the copies itself and wakes the threads.
u64 submit(Team *team, Job *job) {
    u64 ticket = 0;
    Job *next = nullptr;
    if (!forked(team)) {
        pthread_mutex_lock(&team->lock);
        if (!team->closed) {
            ticket = ++team->tickets;
            if (team->idle) {
                team->idle = false;
                next = job;
            } else {
                if (team->tail) team->tail->next = job;
                else team->head = job;
                team->tail = job;
            }
        }
        pthread_mutex_unlock(&team->lock);
    }
    if (!ticket) free(job);
    if (next) begin_jobs(team, next);
    return ticket;
}

void destroy(Team *team) {
    if (team->arena) munmap(team->arena, (size_t)team->arena_bytes);
    free(team->members);
    free(team->parts);
    free(team->counters);
    team->~Team();
    free(team);
}

// Called by the thread that makes the team, so that all threads are ready when the team is returned.
void settle(const Member *m) {
#ifdef __linux__
    char name[16] = "hr-cpu-0";
    name[7] = (char)('0' + m->index % 10);
    pthread_setname_np(m->thread, name);
    if (m->cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)m->cpu, &set);
    pthread_setaffinity_np(m->thread, sizeof(set), &set);
#endif
}

// Threads wait until all have been started, and end at once if one could not be started.
bool start_members(Team *team) {
    int count = 0;
    for (; count < team->n; count++) {
        Member *m = &team->members[count];
        if (pthread_create(&m->thread, nullptr, member_main, m)) break;
        settle(m);
    }
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

// Start `threads` threads; cpus[i] >= 0 pins thread i. Scratch is virtual until touched. Null: no memory or no threads.
HR_EXPORT void *hr_team_new(int32_t threads, const int32_t *cpus, int64_t scratch, int64_t shared, int64_t spin_ns) {
    void *mem = aligned_alloc(64, (sizeof(Team) + 63) & ~(size_t)63);
    Team *team = mem ? new (mem) Team() : nullptr;
    if (!team) return nullptr;
    team->n = threads;
    team->spin_ns = (u64)spin_ns;
    team->members = (Member *)calloc((size_t)threads, sizeof(Member));
    team->parts = (Part *)aligned_alloc(64, (size_t)threads * sizeof(Part));
    team->counters = (int64_t *)aligned_alloc(64, (size_t)threads * HR_COUNTER_STRIDE * sizeof(int64_t));
    team->arena_bytes = shared + scratch * threads;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *arena = mmap(nullptr, (size_t)team->arena_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    team->arena = arena == MAP_FAILED ? nullptr : (char *)arena;
#ifdef MADV_HUGEPAGE
    if (team->arena) madvise(arena, (size_t)team->arena_bytes, MADV_HUGEPAGE);
#endif
    if (!team->arena || !team->members || !team->parts || !team->counters) return destroy(team), nullptr;
    for (int i = 0; i < threads; i++) {
        Member *m = &team->members[i];
        new (&team->parts[i]) Part();
        m->team = team;
        m->index = i;
        m->cpu = cpus ? cpus[i] : -1;
        m->ctx = hr_ctx{nullptr, 0, threads, 0, 0, team->arena + shared + scratch * i, scratch, team->arena, shared,
                        team->counters, &team->error};
    }
    sigset_t all, old;
    sigfillset(&all);  // signals belong to Python, except those that a thread causes itself: they must not be blocked
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    bool good = start_members(team);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return good ? team : (destroy(team), nullptr);
}

// Finish all submitted jobs, then end the threads. The handle stays valid: every ticket is done, and submitting returns
// no ticket. Calling it twice is harmless; in a forked process it does nothing.
HR_EXPORT void hr_team_close(void *handle) {
    Team *team = (Team *)handle;
    if (forked(team)) return;
    pthread_mutex_lock(&team->lock);
    bool again = team->closed, idle = team->idle;
    team->closed = true;
    pthread_mutex_unlock(&team->lock);
    if (again) return;
    if (idle) {
        team->ended.store(true);
        team->turn.advance();
    }
    for (int i = 0; i < team->n; i++) pthread_join(team->members[i].thread, nullptr);
}

// Close the team and free the handle, which must not be in use.
HR_EXPORT void hr_team_free(void *handle) {
    hr_team_close(handle);
    destroy((Team *)handle);
}

// Submit copies, then the tape if given. Returns the ticket to wait for; 0 if memory is short, or if the team is closed
// or forked.
HR_EXPORT u64 hr_submit_tape(void *team, hr_tape *tape, const int32_t *sizes, const hr_copy *copies, int64_t ncopies) {
    Job *job = new_job(sizes, copies, ncopies, nullptr, 0);
    if (!job) return 0;
    job->tape = tape;
    return submit((Team *)team, job);
}

// Submit one kernel for the team; its arguments are copied.
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

// Append an operator; its arguments are copied. Returns 0, or -1 if memory is short. Not allowed while the tape runs.
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

// Nanoseconds of each operator over the runs since profiling began; returns the number of runs.
HR_EXPORT u64 hr_tape_times(hr_tape *tape, u64 *ns) {
    for (int64_t i = 0; i < tape->count; i++) ns[i] = tape->ops[i].ns;
    return tape->runs;
}

typedef struct hr_copy_blocks_args {
    char *const *buffers;    // [count], each block 0's
    const int64_t *bytes;    // [count], of a block
    const int64_t *strides;  // [count], from block to block, in bytes
    const int64_t *pairs;    // [pairs][2]: source, destination
    int64_t count, num_pairs;
} hr_copy_blocks_args;
HR_LAYOUT(hr_copy_blocks_args, buffers, bytes, strides, pairs, count, num_pairs);

// A kernel: copy whole blocks; all sources are read before a destination is written.
HR_EXPORT void hr_copy_blocks(const void *args, hr_ctx *ctx) {
    const hr_copy_blocks_args *a = (const hr_copy_blocks_args *)args;
    for (int64_t i = ctx->part; i < a->count; i += ctx->parts) {
        int64_t bytes = a->bytes[i];
        if (a->num_pairs * bytes > ctx->scratch_bytes) {
            *ctx->error = HR_ERROR_SCRATCH;
            return;
        }
        for (int64_t p = 0; p < a->num_pairs; p++)
            memcpy(ctx->scratch + p * bytes, a->buffers[i] + a->pairs[2 * p] * a->strides[i], (size_t)bytes);
        for (int64_t p = 0; p < a->num_pairs; p++)
            memcpy(a->buffers[i] + a->pairs[2 * p + 1] * a->strides[i], ctx->scratch + p * bytes, (size_t)bytes);
    }
}
}
