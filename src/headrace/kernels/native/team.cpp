// Starts and ends the threads of a team.
#include "team.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <initializer_list>
#include <new>

using namespace hr_runtime;

namespace {

void *member_main(void *arg) {
    Member *m = (Member *)arg;
    m->team->started.await(0, 0);
    if (m->team->failed) return nullptr;
    work(m);
    return nullptr;
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
}
