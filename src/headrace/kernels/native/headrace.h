// The plain C interface of the CPU kernels: what a kernel is given and how the runtime calls it.
//
// A kernel is SPMD: every thread of the team calls it with the same arguments and its own context, and does its share.
// Kernels never allocate, never lock, and order every reduction by the data's position alone: an output's bits depend on
// neither the number of threads, the other rows of the batch nor the chunking. One output element is computed by one thread.
#ifndef HEADRACE_H
#define HEADRACE_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Indices into hr_ctx.sizes: the true sizes of this step. A dimension given as `dim` in kernel arguments is one of these,
// or HR_FIXED with a constant beside it. HR_B counts the sampler's bias triplets, HR_TABLE is the length of a block-table row.
enum { HR_T = 0, HR_S = 1, HR_R = 2, HR_B = 3, HR_TABLE = 4, HR_NUM_SIZES = 8, HR_FIXED = -1 };

// Element types of buffers.
enum { HR_F32 = 0, HR_BF16 = 1, HR_F16 = 2, HR_I8 = 3, HR_E4M3 = 4, HR_I32 = 5 };

// What a kernel may put into *hr_ctx.error. The step's results then raise. HR_ERROR_FORKED: waited for in a forked process.
enum { HR_OK = 0, HR_ERROR_SCRATCH = 1, HR_ERROR_INDEX = 2, HR_ERROR_FORKED = 3 };

typedef struct hr_dim {
    int32_t dim;    // HR_T, HR_S, HR_R or HR_FIXED
    int32_t fixed;  // the size where dim is HR_FIXED; else a multiplier of the symbolic size (1 in most cases)
} hr_dim;

typedef struct hr_ctx {
    const int32_t *sizes;   // [HR_NUM_SIZES]
    int32_t tid, nthreads;
    void *team;             // opaque; for hr_barrier
    char *scratch;          // this thread's own, 64-byte aligned
    int64_t scratch_bytes;
    char *shared;           // the whole team's, 64-byte aligned
    int64_t shared_bytes;
    int64_t *counter;       // the whole team's, zero when a kernel starts; for hr_next
    int32_t *error;         // the whole team's; see HR_OK
} hr_ctx;

typedef void (*hr_kernel)(const void *args, hr_ctx *ctx);

static inline int64_t hr_size(const hr_ctx *c, hr_dim d) {
    return d.dim == HR_FIXED ? d.fixed : (int64_t)c->sizes[d.dim] * d.fixed;
}

// Hand out work dynamically: 0, 1, 2, ... over the whole team, each number once. Which thread gets which is up to chance,
// so no result may depend on it. Starts at 0 in every kernel.
static inline int64_t hr_next(hr_ctx *c) { return __atomic_fetch_add(c->counter, 1, __ATOMIC_RELAXED); }

// This thread's share [*begin, *end) of n units, in multiples of `step`.
static inline void hr_share(const hr_ctx *c, int64_t n, int64_t step, int64_t *begin, int64_t *end) {
    int64_t blocks = (n + step - 1) / step;
    int64_t b = blocks * c->tid / c->nthreads * step, e = blocks * (c->tid + 1) / c->nthreads * step;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

// Wait until every thread of the team has arrived. May be called inside a kernel, by all threads or none.
void hr_barrier(hr_ctx *ctx);

#ifdef __cplusplus
}
#endif

// A kernel `name` is compiled once per instruction set (HR_ISA: generic, v3, v4, v4bf16, amx, dotprod) and exported as hr_<name>_<isa>.
#define HR_PASTE_(name, isa) hr_##name##_##isa
#define HR_PASTE(name, isa) HR_PASTE_(name, isa)
#define HR_EXPORT __attribute__((visibility("default")))
#ifdef __cplusplus
#define HR_KERNEL(name) extern "C" HR_EXPORT void HR_PASTE(name, HR_ISA)(const void *args, hr_ctx *ctx)
#endif
#endif
