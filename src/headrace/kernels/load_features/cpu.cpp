// Reads rows of features that `store_features` wrote.
#include "../store_features/cpu.h"

HR_KERNEL(load_features) {
    const auto *a = (const hr_feature_args *)args;
    const hr_kv *kv = &a->kv;
    int64_t d = kv->dim, heads = 2 * kv->heads, begin, end;
    float *row = (float *)ctx->scratch;
    if (ctx->scratch_bytes < (d + 16) * (int64_t)sizeof(float)) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    hr_share(ctx, ctx->sizes[HR_T] * heads, 1, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t t = u / heads, h = u % heads, slot = a->slots[t], block = slot / kv->block_size, to = h * d;
        if (slot < 0 || block >= kv->blocks) {
            *ctx->error = HR_ERROR_INDEX;
            return;
        }
        load(kv, h < kv->heads, block, h % kv->heads, slot % kv->block_size, row);
        for (int64_t i = 0; i < d && to + i < a->width; i++) a->x[t * a->width + to + i] = row[i];
    }
}
