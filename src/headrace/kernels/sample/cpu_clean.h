// Logits as the sampler reads them: finite, whatever the model gave.
#ifndef HEADRACE_SAMPLE_CLEAN_H
#define HEADRACE_SAMPLE_CLEAN_H
#include "headrace.h"
#include "simd.h"

namespace {

constexpr float LARGEST = 3.40282347e38f;

HR_INLINE vf clean(vf x) {  // NaN counts as -inf, +inf as the largest float
    return x <= LARGEST ? x : (x > LARGEST ? vset(LARGEST) : vset(-INFINITY));
}
// The largest cleaned logit; `vmax` ignores NaN.
HR_INLINE float peak_of(const float *x, int64_t n) {
    vf top[4] = {vset(-INFINITY), vset(-INFINITY), vset(-INFINITY), vset(-INFINITY)};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) top[k] = vmax(vload(x + i + k * W), top[k]);
    for (; i < n; i += W) top[0] = vmax(vload_n(x + i, n - i, -INFINITY), top[0]);
    float peak = hmax(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
    return peak > LARGEST ? LARGEST : peak;
}

}  // namespace
#endif
