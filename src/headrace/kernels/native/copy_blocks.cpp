// The kernel that copies whole blocks of the paged cache.
#include "headrace.h"

#include <string.h>

extern "C" {

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
