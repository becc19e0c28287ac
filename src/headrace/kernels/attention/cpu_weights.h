// Scores to weights in 16 bits, for products of bfloat16: 32 weights are as many instructions as 16 in float32.
#ifndef HEADRACE_ATTENTION_WEIGHTS_H
#define HEADRACE_ATTENTION_WEIGHTS_H
#include "cpu_product.h"

#if HR_PAIRS
namespace {

// 512 (1 + f - 2^f), and half of a step of 1/128 for rounding, at the fractions f of [j / 128, (j + 1) / 128): chosen for the least mean
// square of the relative error. Weights are then off by 0.44% at most and 0.171% in the mean square; rounding alone makes it
// 0.39% and 0.166%. The mean error is 0.
alignas(64) const uint8_t EXP2_CURVE[128] = {
    1,  1,  3,  4,  5,  6,  8,  8,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 24, 25, 26, 27, 28, 28, 29, 30, 31,
    32, 32, 33, 33, 34, 35, 36, 36, 36, 37, 38, 38, 39, 39, 40, 40, 40, 41, 41, 42, 42, 42, 43, 43, 43, 43, 44, 44, 44, 44, 44, 44,
    44, 44, 45, 45, 45, 45, 45, 44, 44, 44, 44, 44, 44, 44, 43, 43, 43, 43, 42, 42, 42, 41, 41, 41, 40, 39, 39, 38, 38, 37, 37, 36,
    35, 35, 34, 34, 33, 32, 31, 30, 30, 29, 27, 27, 26, 25, 23, 23, 22, 21, 19, 18, 17, 15, 14, 14, 13, 11, 10, 9,  6,  5,  3,  2};

// Whole numbers, so that a weight's fraction is the same whatever its row's maximum.
HR_INLINE vf vceil(vf x) { return (vf)_mm512_roundscale_ps((__m512)x, 2); }

// to[i] = 2^(s[i] unit - high) in bfloat16, 0 below 2^-126, for `count` scores (a multiple of 16) of at most high / unit, high a whole
// number; returns the sums of what was written: of groups of 16 that are even by position in one half, of odd ones in the other,
// as if the first one were even where `odd` isn't set.
//
// The exponent x becomes 512 (x + 127) in the low 16 bits of a float32: a bfloat16's exponent above 9 bits of fraction f. A
// bfloat16 of those bits, 7 for the fraction, would stand for 1 + f instead of 2^f; the difference comes from the table.
HR_INLINE vf weigh_scores(const float *s, int64_t count, float unit, float high, bool odd, uint16_t *to) {
    // The last bit of floats from 2^14 to 2^15 is 1 / 512; the low 16 bits are zero at 1.5 times 2^14. 2 / 512: for rounding.
    constexpr float ZERO = 24576.0f + 2.0f / 512.0f;
    const vf factor = vset(unit), shift = vset(ZERO + 127.0f - high), least = vset(ZERO);
    const __m512i near = _mm512_load_si512(EXP2_CURVE), far = _mm512_load_si512(EXP2_CURVE + 64);
    const __m512i low_halves = (__m512i)(lanes() * 0x40004 + 0x20000);
    const __m512bh ones = (__m512bh)iset(0x3f803f80);
    const __mmask64 even = 0x5555555555555555u;
    vf total = {};
    for (int64_t i = 0; i < count; i += 2 * W) {
        vf a = vmax(vfma(vload(s + i), factor, shift), least), b = least;
        if (i + W < count) b = vmax(vfma(vload(s + i + W), factor, shift), least);
        __m512i x = _mm512_permutex2var_epi16((__m512i)a, low_halves, (__m512i)b);
        __m512i curve = _mm512_maskz_permutex2var_epi8(even, near, _mm512_srli_epi16(x, 2), far);
        __m512i p = _mm512_srli_epi16(_mm512_sub_epi16(x, curve), 2);
        total = (vf)_mm512_dpbf16_ps((__m512)total, (__m512bh)p, ones);
        storeu(to + i, p);
    }
    return odd ? (vf)_mm512_shuffle_f32x4((__m512)total, (__m512)total, 0x4e) : total;
}

}  // namespace
#endif
#endif
