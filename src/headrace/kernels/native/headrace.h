// The plain C interface of the CPU kernels: the arguments of a kernel, and how the runtime calls it.
//
// An operator's work is split into as many equal parts as the team has threads, and a kernel computes one part per
// call. The runtime chooses the thread of each part: usually thread i runs part i, but another thread takes the part if
// thread i has lost its core before it began. An operator that needs all parts of a result before it continues does so
// in phases: see hr_again.
//
// Kernels never allocate, lock, or wait for one another, and the order of every reduction depends only on positions in
// the data: an output's bits depend on neither the number of threads, the other rows of the batch nor the chunking. One
// part computes an output element.
#ifndef HEADRACE_H
#define HEADRACE_H
#include <stddef.h>
#include <stdint.h>

// Increase it with every change of the arguments or the meaning of runtime functions; `platforms/cpu/native.py` has the
// same number. The layout of structures is checked separately: see HR_LAYOUT.
#define HR_ABI 2

#ifdef __cplusplus
extern "C" {
#endif

// Indices into hr_ctx.sizes: the true sizes of this step. A dimension given as `dim` in kernel arguments is one of
// these, or HR_FIXED with a constant beside it. HR_B counts the sampler's bias triplets, HR_TABLE is the length of a
// block-table row.
enum { HR_T = 0, HR_S = 1, HR_R = 2, HR_B = 3, HR_TABLE = 4, HR_NUM_SIZES = 8, HR_FIXED = -1 };

// Element types of buffers.
enum { HR_F32 = 0, HR_BF16 = 1, HR_F16 = 2, HR_I8 = 3, HR_E4M3 = 4, HR_I32 = 5 };

// The values that a kernel may write to *hr_ctx.error; reading the step's results then raises. HR_ERROR_FORKED: the job
// was awaited in a forked process.
enum { HR_OK = 0, HR_ERROR_SCRATCH = 1, HR_ERROR_INDEX = 2, HR_ERROR_FORKED = 3 };

enum { HR_COUNTER_STRIDE = 8 };  // a cache line

typedef struct hr_dim {
    int32_t dim;    // HR_T, HR_S, HR_R or HR_FIXED
    int32_t fixed;  // the size if dim is HR_FIXED; otherwise a multiplier of the symbolic size (1 in most cases)
} hr_dim;

typedef struct hr_ctx {
    int32_t *sizes;         // [HR_NUM_SIZES], of this job; one part may lower T and R for the operators behind its own
    int32_t part, parts;
    int32_t phase;          // 0 at first; see hr_again
    int32_t again;
    char *scratch;          // belongs to the running thread, 64-byte aligned; not preserved between phases
    int64_t scratch_bytes;
    char *shared;           // shared by the team, 64-byte aligned
    int64_t shared_bytes;
    int64_t *counters;      // shared by the team, one per part, zero when a phase starts; for hr_next
    int32_t *error;         // shared by the team; see HR_OK
} hr_ctx;

typedef void (*hr_kernel)(const void *args, hr_ctx *ctx);

static inline int64_t hr_size(const hr_ctx *c, hr_dim d) {
    return d.dim == HR_FIXED ? d.fixed : (int64_t)c->sizes[d.dim] * d.fixed;
}

// Distribute work dynamically: 0, 1, 2, ... over the team, each number once per phase. Any part may get any number, so
// no result may depend on it. hr_next_of counts for each part separately: a part takes its own work first, then that of
// others.
static inline int64_t hr_next_of(hr_ctx *c, int64_t part) {
    return __atomic_fetch_add(c->counters + part * HR_COUNTER_STRIDE, 1, __ATOMIC_RELAXED);
}
static inline int64_t hr_next(hr_ctx *c) { return hr_next_of(c, 0); }

// The share [*begin, *end) of n units that belongs to the given part, in multiples of `step`.
static inline void hr_share_of(const hr_ctx *c, int64_t part, int64_t n, int64_t step, int64_t *begin, int64_t *end) {
    int64_t blocks = (n + step - 1) / step;
    int64_t b = blocks * part / c->parts * step, e = blocks * (part + 1) / c->parts * step;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}
static inline void hr_share(const hr_ctx *c, int64_t n, int64_t step, int64_t *begin, int64_t *end) {
    hr_share_of(c, c->part, n, step, begin, end);
}

// Request another phase: when all parts of this one have returned, each is called again with `phase` increased by one.
// All parts of a phase must call it, or none.
static inline void hr_again(hr_ctx *c) { c->again = 1; }

#ifdef __cplusplus
}
#endif

// A kernel `name` is compiled once per instruction set (HR_ISA: generic, v3, v4, v4bf16, amx, dotprod) and exported as
// hr_<name>_<isa>.
#define HR_PASTE_(name, isa) hr_##name##_##isa
#define HR_PASTE(name, isa) HR_PASTE_(name, isa)
#define HR_EXPORT __attribute__((visibility("default")))

// HR_LAYOUT(type, field, ...) exports hr_layout_<type>: the number of fields, the size of the structure, and of each
// field its offset and size. `platforms/cpu/native_layout.py` compares the ctypes structures with it when the library
// is loaded, so that a library built from other sources is refused and cannot misread its arguments. It is data, not a
// function: the linker merges the copies of all instruction sets, and no code of them runs.
#define HR_FIELD_(type, field) , (int32_t)offsetof(type, field), (int32_t)sizeof(((type *)nullptr)->field)
#define HR_PARENS_ ()
#define HR_REPEAT_(...) HR_REPEAT_A(HR_REPEAT_A(HR_REPEAT_A(HR_REPEAT_A(__VA_ARGS__))))
#define HR_REPEAT_A(...) HR_REPEAT_B(HR_REPEAT_B(HR_REPEAT_B(HR_REPEAT_B(__VA_ARGS__))))
#define HR_REPEAT_B(...) HR_REPEAT_C(HR_REPEAT_C(HR_REPEAT_C(HR_REPEAT_C(__VA_ARGS__))))
#define HR_REPEAT_C(...) __VA_ARGS__
#define HR_EACH_(what, type, first, ...) \
    what(type, first) __VA_OPT__(HR_EACH_AGAIN_ HR_PARENS_ (what, type, __VA_ARGS__))
#define HR_EACH_AGAIN_() HR_EACH_
#define HR_ONE_(type, field) +1
#define HR_LAYOUT(type, ...)                                                                                          \
    extern "C" {                                                                                                      \
    extern const int32_t hr_layout_##type[] __attribute__((weak, visibility("default")));                             \
    const int32_t hr_layout_##type[] = {0 HR_REPEAT_(HR_EACH_(HR_ONE_, type, __VA_ARGS__)),                           \
                                        (int32_t)sizeof(type) HR_REPEAT_(HR_EACH_(HR_FIELD_, type, __VA_ARGS__))};    \
    }                                                                                                                 \
    static_assert(true, "")

HR_LAYOUT(hr_dim, dim, fixed);
#ifdef __cplusplus
#define HR_KERNEL(name) extern "C" HR_EXPORT void HR_PASTE(name, HR_ISA)(const void *args, hr_ctx *ctx)
#endif
#endif
