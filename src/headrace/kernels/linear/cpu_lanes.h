// Sixteen lanes, one for each row of a panel: AVX-512 registers, pairs of AVX2 ones, or compiler vectors.
#ifndef HEADRACE_LINEAR_LANES_H
#define HEADRACE_LINEAR_LANES_H
#include "simd.h"

#if defined(__AVX512F__)
#include "cpu_lanes_avx512.inc"
#elif defined(__AVX2__)
#include "cpu_lanes_avx2.inc"
#else
#include "cpu_lanes_generic.inc"
#endif

namespace {

HR_INLINE int32_t load_i32(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}
HR_INLINE void fstore_n(float *p, F v, int64_t n) {
    if (n >= 16) return fstore(p, v);
    float t[16];
    fstore(t, v);
    memcpy(p, t, (size_t)n * 4);
}
HR_INLINE F fload_n(const float *p, int64_t n) {
    if (n >= 16) return fload(p);
    float t[16] = {};
    memcpy(t, p, (size_t)n * 4);
    return fload(t);
}

}  // namespace
#endif
