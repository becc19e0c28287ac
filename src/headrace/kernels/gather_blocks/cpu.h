// Arguments of `gather_blocks` and `scatter_blocks`.
#ifndef HEADRACE_MOVED_BLOCKS_H
#define HEADRACE_MOVED_BLOCKS_H
#include <string.h>

#include "headrace.h"

// All parts of a block lie together in the cache, so a block is one copy.
struct hr_moved_blocks_args {
    char *cache;          // block 0
    char *packed;         // [count][bytes]
    const int32_t *ids;   // [count]; 0 is padding
    int64_t stride, bytes, blocks, count;
};
HR_LAYOUT(hr_moved_blocks_args, cache, packed, ids, stride, bytes, blocks, count);

// Copy this part's share of the blocks, out of the cache or into it.
static inline void move_blocks(const hr_moved_blocks_args *a, hr_ctx *ctx, bool out) {
    int64_t begin, end;
    hr_share(ctx, a->count, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t block = a->ids[i];
        if (block < 0 || block >= a->blocks) {
            *ctx->error = HR_ERROR_INDEX;
            return;
        }
        char *held = a->cache + block * a->stride, *row = a->packed + i * a->bytes;
        if (block) memcpy(out ? row : held, out ? held : row, (size_t)a->bytes);
    }
}
#endif
