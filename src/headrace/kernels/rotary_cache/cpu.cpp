// One pass over QKV: norms of q and k by head, NeoX rotation (arXiv:2104.09864), writes k and v to the cache, and q.
#include "kv.h"
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

HR_INLINE float largest(const float *x, int64_t n) {
    vf top = {};
    for (int64_t i = 0; i < n; i += W) top = vmax(vabs(vload_n(x + i, n - i)), top);
    return hmax(top);
}

// Element i of a key or value of token `key` (0 to 15) of a group.
HR_INLINE int64_t place(bool keys, bool paired, int64_t padded, int64_t key, int64_t i) {
    if (!paired) return keys ? i * 16 + key : key * padded + i;
    return keys ? (i / 2 * 16 + key) * 2 + i % 2 : (key / 2 * padded + i) * 2 + key % 2;
}

template <class T, class F> HR_INLINE void scatter(T *group, bool keys, bool paired, int64_t padded, int64_t key,
                                                   int64_t n, F code) {
    for (int64_t i = 0; i < n; i++) group[place(keys, paired, padded, key, i)] = code(i);
}

// Store one token's head. Codes of int8 and e4m3 are x / scale, scale = amax / largest code.
void store(const hr_kv *kv, bool keys, int64_t block, int64_t head, int64_t offset, const float *x) {
    int64_t key = offset % 16, n = kv->dim, padded = kv->padded;
    char *to = (keys ? kv->keys : kv->values) + hr_kv_group(kv, block, head, offset);
    if (kv->dtype == HR_F32) return scatter((float *)to, keys, false, padded, key, n, [&](int64_t i) { return x[i]; });
    if (kv->dtype == HR_F16)
        return scatter((uint16_t *)to, keys, false, padded, key, n, [&](int64_t i) { return to_f16(x[i]); });
    if (kv->dtype == HR_BF16)
        return scatter((uint16_t *)to, keys, true, padded, key, n, [&](int64_t i) { return to_bf16(x[i]); });
    float most = kv->dtype == HR_I8 ? 127.0f : 448.0f, scale = largest(x, n) / most, by = scale > 0.0f ? scale : 1.0f;
    char *scales = (keys ? kv->key_scales : kv->value_scales) + hr_kv_scales(kv, block, head, offset);
    ((float *)scales)[key] = scale;
    auto clamp = [&](float y) { return y > most ? most : y < -most ? -most : y; };
    if (kv->dtype == HR_I8)
        scatter((int8_t *)to, keys, true, padded, key, n, [&](int64_t i) { return (int8_t)clamp(rintf(x[i] / by)); });
    else scatter((uint8_t *)to, keys, true, padded, key, n, [&](int64_t i) { return to_e4m3(clamp(x[i] / by)); });
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
