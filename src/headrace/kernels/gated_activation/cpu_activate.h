// The activation function, and a block of gated values; kinds: 0 silu, 1 gelu, 2 gelu_tanh.
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

template <int Kind>
HR_INLINE void activate_rows(const float *gate, const float *up, int64_t rows, int64_t columns, float *y,
                             int64_t stride) {
    for (int64_t r = 0; r < rows; r++, gate += 16, up += 16, y += stride)
        for (int64_t i = 0; i < columns; i += W)
            vstore_n(y + i, activate<Kind>(vload_n(gate + i, columns - i)) * vload_n(up + i, columns - i), columns - i);
}
// y[r][i] = act(gate[r][i]) * up[r][i], up to 16 columns; gate and up [rows][16].
inline void activate_block(int kind, const float *gate, const float *up, int64_t rows, int64_t columns, float *y,
                           int64_t stride) {
    if (kind == 0) activate_rows<0>(gate, up, rows, columns, y, stride);
    else if (kind == 1) activate_rows<1>(gate, up, rows, columns, y, stride);
    else activate_rows<2>(gate, up, rows, columns, y, stride);
}

}  // namespace
#endif
