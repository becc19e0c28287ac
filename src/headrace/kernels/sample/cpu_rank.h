// Selection by rank: tokens ordered by score, ties to the lower id, without sorting the vocabulary.
#ifndef HEADRACE_SAMPLE_RANK_H
#define HEADRACE_SAMPLE_RANK_H
#include <algorithm>

#include "simd.h"

namespace {

// A token as one integer key, larger is better; see order.py.
HR_INLINE uint64_t key_of(float score, int64_t token) {
    float x = score + 0.0f;  // -0 becomes +0
    int32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t ordered = (uint32_t)(bits ^ ((bits >> 31) & 0x7fffffff)) ^ 0x80000000u;
    return (uint64_t)ordered << 32 | (0xffffffffu - (uint32_t)token);
}
HR_INLINE int64_t token_of(uint64_t key) { return 0xffffffffu - (uint32_t)key; }

// Keys of all tokens with score >= floor, in any order; returns their number.
HR_INLINE int64_t gather_above(const float *x, int64_t n, float floor, uint64_t *keys) {
    int64_t count = 0, i = 0;
    for (; i + W <= n; i += W) {
#if defined(__AVX512F__)
        unsigned above = _mm512_cmp_ps_mask((__m512)vload(x + i), _mm512_set1_ps(floor), _CMP_GE_OQ);
        for (; above; above &= above - 1) {
            int j = __builtin_ctz(above);
            keys[count++] = key_of(x[i + j], i + j);
        }
#else
        for (int j = 0; j < W; j++)
            if (x[i + j] >= floor) keys[count++] = key_of(x[i + j], i + j);
#endif
    }
    for (; i < n; i++)
        if (x[i] >= floor) keys[count++] = key_of(x[i], i);
    return count;
}

HR_INLINE void sort_best(uint64_t *keys, int64_t count, int64_t first) {
    auto better = [](uint64_t a, uint64_t b) { return a > b; };
    if (first < count) std::nth_element(keys, keys + first, keys + count, better);
    std::sort(keys, keys + (first < count ? first : count), better);
}

// The k best of n tokens (k <= n) in order; `peak` is the largest score, `unit` a first estimate of their
// range.
HR_INLINE void best(const float *x, int64_t n, int64_t k, float peak, float unit, uint64_t *keys) {
    for (float reach = unit;; reach *= 4.0f) {
        bool all = !(reach < 1e4f * unit);
        int64_t count = gather_above(x, n, all ? -INFINITY : peak - reach, keys);
        if (count < k) continue;
        sort_best(keys, count, k);
        return;
    }
}

}  // namespace
#endif
