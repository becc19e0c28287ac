// One pass over QKV: norms of q and k by head, NeoX rotation (arXiv:2104.09864), writes k and v to the cache, and q.
#include "kv_store.h"
#include "norm.h"

struct rotary_cache_args {
    const float *qkv;  // [T, (Hq + 2 Hk) d]
    float *q;          // [T, Hq d]
    hr_kv kv;
    const int32_t *positions, *slot_mapping;
    const float *cos_sin;  // [positions, rotary_dim]: cos | sin
    const float *q_norm, *k_norm;  // [d] or null
    int64_t table_rows;
    int32_t q_heads, rotary_dim;
    float eps;
};
HR_LAYOUT(rotary_cache_args, qkv, q, kv, positions, slot_mapping, cos_sin, q_norm, k_norm, table_rows, q_heads,
          rotary_dim, eps);

namespace {

typedef rotary_cache_args Args;

HR_INLINE void rotate(const float *x, const float *table, float *y, int64_t half, int64_t dim) {
    const float *cos = table, *sin = table + half, *other = x + half;
    int64_t i = 0;
    for (; i < half; i += W) {
        int64_t n = half - i;
        vf c = vload_n(cos + i, n), s = vload_n(sin + i, n), a = vload_n(x + i, n), b = vload_n(other + i, n);
        vstore_n(y + i, a * c - b * s, n);
        vstore_n(y + half + i, b * c + a * s, n);
    }
    for (i = 2 * half; i < dim; i++) y[i] = x[i];
}

}  // namespace

HR_KERNEL(rotary_cache) {
    const auto *a = (const Args *)args;
    const hr_kv *kv = &a->kv;
    int64_t d = kv->dim, heads = a->q_heads + 2 * kv->heads, begin, end;
    float *normed = (float *)ctx->scratch, *rotated = normed + ((d + 15) & ~(int64_t)15);
    hr_share(ctx, ctx->sizes[HR_T] * heads, 1, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t t = u / heads, h = u % heads, slot = a->slot_mapping[t], position = a->positions[t];
        int64_t block = slot / kv->block_size, offset = slot % kv->block_size;
        if (slot < 0 || block >= kv->blocks || position < 0 || position >= a->table_rows) {
            *ctx->error = HR_ERROR_INDEX;
            return;
        }
        const float *x = a->qkv + (t * heads + h) * d, *table = a->cos_sin + position * a->rotary_dim;
        if (h >= a->q_heads + kv->heads) {
            store(kv, false, block, h - a->q_heads - kv->heads, offset, x);
            continue;
        }
        bool query = h < a->q_heads;
        const float *norm = query ? a->q_norm : a->k_norm;
        if (norm) {
            norm_row(x, norm, normed, d, sum_of_squares(x, d), a->eps);
            x = normed;
        }
        float *y = query ? a->q + (t * a->q_heads + h) * d : rotated;
        rotate(x, table, y, a->rotary_dim / 2, d);
        if (!query) store(kv, true, block, h - a->q_heads, offset, y);
    }
}
