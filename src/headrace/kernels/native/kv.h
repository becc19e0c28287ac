// The CPU's paged KV cache of one layer. Sixteen keys make a group, the unit that the attention's products work on; a
// block of block_size tokens (a multiple of 16) and one head is block_size / 16 groups of 16 padded elements each, keys
// apart from values:
//
//   float32, float16          keys [padded][16]        values [16][padded]
//   bfloat16, int8, e4m3      keys [padded / 2][16][2] values [8][padded][2]: two of a product's terms lie side by side
//
// padded is head_dim rounded up to 16; what lies past head_dim is zero. Scales are float32 [heads][block_size] of a
// block.
//
// A block's parts of all layers lie together, `stride` bytes from those of the next: a few tokens touch a few pages of
// memory, not one in each layer's own region.
#ifndef HEADRACE_KV_H
#define HEADRACE_KV_H
#include "headrace.h"

typedef struct hr_kv {
    char *keys, *values;              // of block 0: [heads][block_size / 16][16 padded]
    char *key_scales, *value_scales;  // null but for int8 and e4m3
    int64_t blocks, stride;
    int32_t heads, dim, padded, block_size;
    int32_t dtype, item;               // HR_F32..., bytes of an element
} hr_kv;
HR_LAYOUT(hr_kv, keys, values, key_scales, value_scales, blocks, stride, heads, dim, padded, block_size, dtype, item);

static inline int hr_kv_paired(const hr_kv *kv) { return kv->dtype != HR_F32 && kv->dtype != HR_F16; }

// Where the group lies that holds token `offset` of a block, in bytes.
static inline int64_t hr_kv_group(const hr_kv *kv, int64_t block, int64_t head, int64_t offset) {
    return block * kv->stride + (head * (kv->block_size / 16) + offset / 16) * 16 * kv->padded * kv->item;
}

// Where its sixteen scales lie.
static inline int64_t hr_kv_scales(const hr_kv *kv, int64_t block, int64_t head, int64_t offset) {
    return block * kv->stride + (head * kv->block_size + offset / 16 * 16) * (int64_t)sizeof(float);
}
#endif
