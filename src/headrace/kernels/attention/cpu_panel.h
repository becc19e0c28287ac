// Groups of cached keys and values in the form the products use: float32, or bfloat16 pairs with AVX-512. The conversion from every stored type is exact.
#ifndef HEADRACE_ATTENTION_PANEL_H
#define HEADRACE_ATTENTION_PANEL_H
#include "cpu_product.h"
#include "kv.h"

namespace {

// Whether the cache's type is multiplied as bfloat16 pairs; every code of int8 and e4m3 is a bfloat16.
HR_INLINE bool panel_pairs(const hr_kv *kv) { return HR_PAIRS && hr_kv_paired(kv); }
// Whether a stored group is a panel already.
HR_INLINE bool panel_stored(const hr_kv *kv) {
    return kv->dtype == HR_F32 || (HR_PAIRS && kv->dtype == HR_BF16);
}

// W stored elements from `i` on as floats.
HR_INLINE vf load_stored(const char *group, int32_t dtype, int64_t i) {
    if (dtype == HR_F16) return from_f16(loadu<vh>((const uint16_t *)group + i));
    if (dtype == HR_BF16) return (vf)(__builtin_convertvector(loadu<vh>((const uint16_t *)group + i), vu) << 16);
    if (dtype == HR_I8) return __builtin_convertvector(loadu<vb>(group + i), vf);
    typedef uint8_t vub __attribute__((vector_size(W)));
    return from_e4m3(__builtin_convertvector(loadu<vub>(group + i), vu));
}

// Pairs [n][16 or padded][2] of an 8-bit type to pairs of bfloat16, 32 elements at a time.
#if HR_PAIRS
HR_INLINE __m512i pairs_of_int8(__m256i codes) {
    __m512i wide = _mm512_cvtepi8_epi16(codes);
    __m512i low = (__m512i)_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(wide)));
    __m512i high = (__m512i)_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(wide, 1)));
    __m256i first = _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16));  // the lower halves are zero
    __m256i second = _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
// Exponent and mantissa are shifted; the 8 smallest, which are subnormal (k / 512), come from a table, NaN is set.
HR_INLINE __m512i pairs_of_e4m3(__m256i codes) {
    const __m512i small = _mm512_castsi128_si512(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    __m512i wide = _mm512_cvtepu8_epi16(codes), rest = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
    __m512i sign = _mm512_slli_epi16(_mm512_and_si512(wide, _mm512_set1_epi16(0x80)), 8);
    __m512i value = _mm512_add_epi16(_mm512_slli_epi16(rest, 4), _mm512_set1_epi16(120 << 7));
    __mmask32 tiny = _mm512_cmplt_epu16_mask(rest, _mm512_set1_epi16(8));
    value = _mm512_mask_permutexvar_epi16(value, tiny, rest, small);
    __mmask32 nan = _mm512_cmpeq_epi16_mask(rest, _mm512_set1_epi16(0x7f));
    value = _mm512_mask_mov_epi16(value, nan, _mm512_set1_epi16(0x7fc0));
    return _mm512_or_si512(value, sign);
}
#endif
HR_INLINE void to_pairs(const char *group, int32_t dtype, int64_t elements, uint32_t *panel) {
#if HR_PAIRS
    for (int64_t i = 0; i < elements; i += 32) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(group + i));
        _mm512_storeu_si512((uint16_t *)panel + i, dtype == HR_I8 ? pairs_of_int8(codes) : pairs_of_e4m3(codes));
    }
#else
    (void)group, (void)dtype, (void)elements, (void)panel;
#endif
}

// Plain float32 [rows][width] of a group; `paired` storage holds [rows / 2][width][2].
HR_INLINE void to_floats(const char *group, int32_t dtype, int64_t rows, int64_t width, bool paired, float *panel) {
    if (!paired) {
        for (int64_t i = 0; i < rows * width; i += W) vstore(panel + i, load_stored(group, dtype, i));
        return;
    }
    float line[2 * W];
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t c = 0; c < width; c += W) {
            int64_t at = r * width + 2 * c;
            vstore(line, load_stored(group, dtype, at));
            vstore(line + W, load_stored(group, dtype, at + W));
            for (int i = 0; i < W; i++) {
                panel[r * width + c + i] = line[2 * i];
                panel[(r + 1) * width + c + i] = line[2 * i + 1];
            }
        }
}

// The group at `stored` ([16][padded] elements) as a panel; `room` holds 16 padded floats.
HR_INLINE const uint32_t *panel_of(const hr_kv *kv, const char *stored, bool keys, uint32_t *room) {
    if (panel_stored(kv)) return (const uint32_t *)stored;
    if (panel_pairs(kv)) to_pairs(stored, kv->dtype, 16 * kv->padded, room);
    else to_floats(stored, kv->dtype, keys ? kv->padded : 16, keys ? 16 : kv->padded, hr_kv_paired(kv), (float *)room);
    return room;
}

// A copy of a value panel in which keys from `present` on are zero: memory that was never written may hold NaN, and 0
// times NaN is NaN.
HR_INLINE const uint32_t *clear_absent(const uint32_t *panel, int64_t padded, bool pairs, int64_t present,
                                       uint32_t *room) {
    int64_t words = (pairs ? 8 : 16) * padded, kept = (pairs ? present / 2 : present) * padded;
    if (room != panel) memcpy(room, panel, (size_t)words * 4);
    if (pairs && present % 2) {
        for (int64_t i = 0; i < padded; i++) room[kept + i] &= 0xffffu;
        kept += padded;
    }
    memset(room + kept, 0, (size_t)(words - kept) * 4);
    return room;
}

}  // namespace
#endif
