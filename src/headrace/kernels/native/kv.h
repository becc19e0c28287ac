// The CPU's paged KV cache of one layer. Sixteen keys make a group, the unit that the attention's products work on; a
// block of block_size tokens (a multiple of 16) and one head is block_size / 16 groups of 16 padded elements each, keys
// apart from values:
//
//   float32, float16          keys [padded][16]        values [16][padded]
//   bfloat16, int8, e4m3      keys [padded / 2][16][2] values [8][padded][2]: two terms of a product are adjacent
//
// padded is head_dim rounded up to 16; elements past head_dim are zero. Scales are float32 [heads][block_size] of a
// block.
//
// The parts of a block of all layers are stored together, `stride` bytes before those of the next block: a few tokens
// access a few pages of memory, not one page per layer.
#ifndef HEADRACE_KV_H
#define HEADRACE_KV_H
#include "headrace.h"

typedef struct hr_kv {
    char *keys, *values;              // of block 0: [heads][block_size / 16][16 padded]
    char *key_scales, *value_scales;  // null except for int8 and e4m3
    int64_t blocks, stride;
    int32_t heads, dim, padded, block_size;
    int32_t dtype, item;               // HR_F32..., bytes of an element
} hr_kv;
HR_LAYOUT(hr_kv, keys, values, key_scales, value_scales, blocks, stride, heads, dim, padded, block_size, dtype, item);

static inline int hr_kv_paired(const hr_kv *kv) { return kv->dtype != HR_F32 && kv->dtype != HR_F16; }

// The byte offset of the group that holds token `offset` of a block.
static inline int64_t hr_kv_group(const hr_kv *kv, int64_t block, int64_t head, int64_t offset) {
    return block * kv->stride + (head * (kv->block_size / 16) + offset / 16) * 16 * kv->padded * kv->item;
}

// The byte offset of its sixteen scales.
static inline int64_t hr_kv_scales(const hr_kv *kv, int64_t block, int64_t head, int64_t offset) {
    return block * kv->stride + (head * kv->block_size + offset / 16 * 16) * (int64_t)sizeof(float);
}
#endif
