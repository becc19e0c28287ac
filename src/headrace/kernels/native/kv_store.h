// Writes to the CPU's paged KV cache, and reads of single entries; native/kv.h describes its layout.
#ifndef HEADRACE_KV_STORE_H
#define HEADRACE_KV_STORE_H
#include "kv.h"
#include "simd.h"

namespace {

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

// As to_bf16, W values at once: in the low halves.
HR_INLINE vu bf16_bits(vf x) {
    vu u = (vu)x, even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    return (u & 0x7fffffffu) > 0x7f800000u ? quiet : even;
}

// A key of bfloat16: elements 2 i and 2 i + 1 are the word 16 i + key.
HR_INLINE void store_key(uint32_t *group, int64_t key, int64_t n, const float *x) {
    for (int64_t i = 0; i < n; i += W) {
        uint32_t bits[W];
        storeu(bits, bf16_bits(vload_n(x + i, n - i)));
        for (int64_t j = 0; j < W && i + j < n; j += 2) {
            uint32_t *word = group + (i + j) / 2 * 16 + key;
            uint32_t high = i + j + 1 < n ? bits[j + 1] << 16 : *word & 0xffff0000u;
            *word = bits[j] | high;
        }
    }
}

// A value of bfloat16: element i is a half of the word key / 2 * padded + i, the low one of an even key. Another thread
// may write the other half at the same time, so it is not touched.
HR_INLINE void store_value(uint16_t *group, int64_t padded, int64_t key, int64_t n, const float *x) {
    uint16_t *to = group + key / 2 * padded * 2;
    for (int64_t i = 0; i < n; i += W) {
        vu bits = bf16_bits(vload_n(x + i, n - i));
#if defined(__AVX512BW__)
        if (n - i >= W) {
            __mmask32 halves = key % 2 ? 0xaaaaaaaau : 0x55555555u;
            _mm512_mask_storeu_epi16(to + 2 * i, halves, (__m512i)(key % 2 ? bits << 16 : bits));
            continue;
        }
#endif
        for (int64_t j = 0; j < W && i + j < n; j++) to[2 * (i + j) + key % 2] = (uint16_t)bits[j];
    }
}

// Store one token's head. Codes of int8 and e4m3 are x / scale, scale = amax / largest code.
[[maybe_unused]] void store(const hr_kv *kv, bool keys, int64_t block, int64_t head, int64_t offset, const float *x) {
    int64_t key = offset % 16, n = kv->dim, padded = kv->padded;
    char *to = (keys ? kv->keys : kv->values) + hr_kv_group(kv, block, head, offset);
    if (kv->dtype == HR_F32) return scatter((float *)to, keys, false, padded, key, n, [&](int64_t i) { return x[i]; });
    if (kv->dtype == HR_F16)
        return scatter((uint16_t *)to, keys, false, padded, key, n, [&](int64_t i) { return to_f16(x[i]); });
    if (kv->dtype == HR_BF16 && keys) return store_key((uint32_t *)to, key, n, x);
    if (kv->dtype == HR_BF16) return store_value((uint16_t *)to, padded, key, n, x);
    float most = kv->dtype == HR_I8 ? 127.0f : 448.0f, scale = largest(x, n) / most, by = scale > 0.0f ? scale : 1.0f;
    char *scales = (keys ? kv->key_scales : kv->value_scales) + hr_kv_scales(kv, block, head, offset);
    ((float *)scales)[key] = scale;
    auto clamp = [&](float y) { return y > most ? most : y < -most ? -most : y; };
    if (kv->dtype == HR_I8)
        scatter((int8_t *)to, keys, true, padded, key, n, [&](int64_t i) { return (int8_t)clamp(rintf(x[i] / by)); });
    else scatter((uint8_t *)to, keys, true, padded, key, n, [&](int64_t i) { return to_e4m3(clamp(x[i] / by)); });
}

HR_INLINE float bits_of_f16(uint16_t code) {
    vh h = {};
    h[0] = code;
    return from_f16(h)[0];
}

HR_INLINE float bits_of_e4m3(uint8_t code) {
    vu u = {};
    u[0] = code;
    return from_e4m3(u)[0];
}

// Read one token's head, decoded to float32.
[[maybe_unused]] void load(const hr_kv *kv, bool keys, int64_t block, int64_t head, int64_t offset, float *x) {
    int64_t key = offset % 16, padded = kv->padded;
    bool paired = hr_kv_paired(kv) != 0;
    const char *from = (keys ? kv->keys : kv->values) + hr_kv_group(kv, block, head, offset);
    const char *scales = keys ? kv->key_scales : kv->value_scales;
    float by = scales ? ((const float *)(scales + hr_kv_scales(kv, block, head, offset)))[key] : 1.0f;
    for (int64_t i = 0; i < kv->dim; i++) {
        int64_t at = place(keys, paired, padded, key, i);
        switch (kv->dtype) {
            case HR_F32: x[i] = ((const float *)from)[at]; break;
            case HR_F16: x[i] = bits_of_f16(((const uint16_t *)from)[at]); break;
            case HR_BF16: x[i] = from_bf16(((const uint16_t *)from)[at]); break;
            case HR_I8: x[i] = (float)((const int8_t *)from)[at] * by; break;
            default: x[i] = bits_of_e4m3(((const uint8_t *)from)[at]) * by;
        }
    }
}

}  // namespace
#endif
