// Groups of cached keys and values as the products take them: float32, or bfloat16 pairs where the processor multiplies those.
// The conversion from every stored type is exact.
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

// Pairs [n][16 or padded][2] of a narrow type to pairs of bfloat16.
HR_INLINE void to_pairs(const char *group, int32_t dtype, int64_t elements, uint32_t *panel) {
#if HR_PAIRS
    for (int64_t i = 0; i < elements; i += W) {
        vf x = load_stored(group, dtype, i);
        storeu((uint16_t *)panel + i, (vh)_mm512_cvtneps_pbh((__m512)x));
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

// A copy of a value panel in which keys from `present` on are zero: what was never written may hold anything, and 0 times NaN is NaN.
HR_INLINE const uint32_t *clear_absent(const uint32_t *panel, int64_t padded, bool pairs, int64_t present, uint32_t *room) {
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
