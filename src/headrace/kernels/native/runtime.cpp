// The runtime: a team of threads that executes submitted jobs in order.
//
// A job is host copies, then a tape (or one kernel). Operators run in phases of as many parts as there are threads. A
// thread runs its own part, and a little later parts that no thread has begun. The thread that ends a phase's last part
// begins the next phase, and the thread that ends a job takes the next one from the queue. So the team waits for a
// thread only if it is in the middle of a part, because the loop, the server and others need the cores, too. Python
// does not have to act between two jobs. Idle threads spin for a bounded time and then sleep on a futex.
#include "team.h"

#include <stdlib.h>
#include <string.h>

using namespace hr_runtime;

namespace {

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
    u64 spent = now_ns() - team->job_start;
    u64 busy = team->busy_ns.fetch_add(spent, std::memory_order_relaxed) + spent;
    u64 ticket = team->done.load(std::memory_order_relaxed) + 1;
    // Released for the fence of `hr_busy_at`: who reads this time also sees that the jobs before are done.
    team->busy_at[ticket % HR_BUSY_KEPT].store(busy, std::memory_order_release);
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

void hr_runtime::work(Member *m) {
    Team *team = m->team;
    for (;;) {
        u32 t = team->turn.word.load(std::memory_order_acquire);
        if (team->ended.load(std::memory_order_relaxed)) return;
        if (team->active.load(std::memory_order_acquire) == t) take_part(m, m->index, t);
        await_turn(m, t);
    }
}

extern "C" {

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

// The same when the ticket's job was done; the largest number if it isn't, or was done too many jobs ago.
HR_EXPORT u64 hr_busy_at(void *handle, u64 ticket) {
    Team *team = (Team *)handle;
    if (!ticket) return 0;
    if (team->done.load() < ticket) return ~(u64)0;
    u64 busy = team->busy_at[ticket % HR_BUSY_KEPT].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    return team->done.load() < ticket + HR_BUSY_KEPT - 1 ? busy : ~(u64)0;
}
}
