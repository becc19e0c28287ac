// The parts of RMSNorm that its kernels share; a row's sum has one order everywhere.
#ifndef HEADRACE_NORM_H
#define HEADRACE_NORM_H
#include "headrace.h"
#include "simd.h"

namespace {

// Four vectors of partial sums, element i in lane i mod 4W, then halves.
HR_INLINE float sum_of_squares(const float *x, int64_t n) {
    vf s[4] = {};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) {
            vf v = vload(x + i + k * W);
            s[k] = vfma(v, v, s[k]);
        }
    for (int k = 0; i < n; i += W, k++) {
        vf v = vload_n(x + i, n - i);
        s[k] = vfma(v, v, s[k]);
    }
    return hsum((s[0] + s[2]) + (s[1] + s[3]));
}

HR_INLINE void norm_row(const float *x, const float *weight, float *y, int64_t n, float squares, float eps) {
    // Multiply by the reciprocal, as in training, so that inputs midway between two rounding steps round in the same
    // way.
    vf by = vset(1.0f / sqrtf(squares / (float)n + eps));
    int64_t i = 0;
    for (; i + W <= n; i += W) vstore(y + i, vload(x + i) * by * vload(weight + i));
    if (i < n) vstore_n(y + i, vload_n(x + i, n - i) * by * vload_n(weight + i, n - i), n - i);
}

}  // namespace
#endif
