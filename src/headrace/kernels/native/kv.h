// The CPU's paged KV cache of one layer. Sixteen keys make a group, the unit that the attention's products work on; a block of
// block_size tokens (a multiple of 16) and one head is block_size / 16 groups of 16 padded elements each, keys apart from values:
//
//   float32, float16          keys [padded][16]        values [16][padded]
//   bfloat16, int8, e4m3      keys [padded / 2][16][2] values [8][padded][2]: two of a product's terms lie side by side
//
// padded is head_dim rounded up to 16; what lies past head_dim is zero. Scales are float32 [blocks][heads][block_size].
#ifndef HEADRACE_KV_H
#define HEADRACE_KV_H
#include "headrace.h"

typedef struct hr_kv {
    char *keys, *values;               // [blocks][heads][block_size / 16][16 padded]
    float *key_scales, *value_scales;  // null but for int8 and e4m3
    int64_t blocks;
    int32_t heads, dim, padded, block_size;
    int32_t dtype, item;               // HR_F32..., bytes of an element
} hr_kv;

static inline int hr_kv_paired(const hr_kv *kv) { return kv->dtype != HR_F32 && kv->dtype != HR_F16; }

// Index of the group that holds token `offset` of a block; times 16 padded item it is its byte offset, times 16 its scales' index.
static inline int64_t hr_kv_group(const hr_kv *kv, int64_t block, int64_t head, int64_t offset) {
    return (block * kv->heads + head) * (kv->block_size / 16) + offset / 16;
}
#endif
