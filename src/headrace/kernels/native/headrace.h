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
// or HR_FIXED with a constant beside it.
enum { HR_T = 0, HR_S = 1, HR_R = 2, HR_NUM_SIZES = 8, HR_FIXED = -1 };

// Element types of buffers.
enum { HR_F32 = 0, HR_BF16 = 1, HR_F16 = 2, HR_I8 = 3, HR_E4M3 = 4, HR_I32 = 5 };

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
} hr_ctx;

typedef void (*hr_kernel)(const void *args, hr_ctx *ctx);

static inline int64_t hr_size(const hr_ctx *c, hr_dim d) {
    return d.dim == HR_FIXED ? d.fixed : (int64_t)c->sizes[d.dim] * d.fixed;
}

// Wait until every thread of the team has arrived. May be called inside a kernel, by all threads or none.
void hr_barrier(hr_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
