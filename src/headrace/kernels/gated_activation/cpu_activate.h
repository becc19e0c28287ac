// The gate's own function; kinds: 0 silu, 1 gelu, 2 gelu_tanh.
#ifndef HEADRACE_GATED_ACTIVATION_H
#define HEADRACE_GATED_ACTIVATION_H
#include "simd.h"

namespace {

template <int Kind> HR_INLINE vf activate(vf x) {
    if (Kind == 0) return x / (vset(1.0f) + vexp(-x));
    vf half = vset(0.5f) * x;
    if (Kind == 1) return half * (vset(1.0f) + verf(x * vset(0.70710678118654752f)));
    vf inner = vset(0.79788456080286536f) * vfma(vset(0.044715f) * x * x, x, x);
    return half * (vset(1.0f) + vtanh(inner));
}

}  // namespace
#endif
