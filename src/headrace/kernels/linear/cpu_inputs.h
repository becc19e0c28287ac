// A row of inputs in the form of the product: rounded as the checkpoint's scheme requires, int8, bfloat16 or float32.
//
// The rounding of each scheme is that of `activation.py`, to the bit. Every scale depends on one row only.
#ifndef HEADRACE_LINEAR_INPUTS_H
#define HEADRACE_LINEAR_INPUTS_H
#include "cpu_tile.h"

namespace {

// The largest magnitude; a NaN gives NaN.
HR_INLINE float largest(const float *x, int64_t n) {
    vu m = {};
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        vu v = (vu)vabs(vload(x + i));
        m = v > m ? v : m;
    }
    if (i < n) {
        vu v = (vu)vabs(vload_n(x + i, n - i));
        m = v > m ? v : m;
    }
#if defined(__AVX512F__)
    uint32_t top = _mm512_reduce_max_epu32((__m512i)m);
#else
    uint32_t top = 0;
    for (int l = 0; l < W; l++) top = m[l] > top ? m[l] : top;
#endif
    float r;
    memcpy(&r, &top, 4);
    return r;
}

HR_INLINE vf clamp(vf x, float low, float high) { return vmin(vmax(x, vset(low)), vset(high)); }

// To the nearest float with `mantissa` bits after the leading one, ties to even, at exponents of `least` and above;
// below, the step size stays the same.
HR_INLINE vf round_short(vf x, int mantissa, int least) {
    vi e = (vi)((vu)vabs(x) >> 23);
    vi low = iset(least + 127);
    e = e < low ? low : e;
    vf magic = (vf)(((e + (23 - mantissa)) << 23) | 0x400000);
    vf r = (x + magic) - magic;
    return (vf)(((vu)r & 0x7fffffffu) | ((vu)x & 0x80000000u));
}
HR_INLINE vf round_e4m3(vf x) { return round_short(clamp(x, -448.0f, 448.0f), 3, -6); }
HR_INLINE vf round_e2m1(vf x) { return clamp(round_short(x, 1, 0), -6.0f, 6.0f); }
HR_INLINE float one(vf x) { return x[0]; }

HR_INLINE float never_zero(float scale) { return scale == 0.0f ? 1.1920928955078125e-7f : scale; }

// 2^e as compressed-tensors chooses it for a group of E2M1 values: the mantissa is rounded at its first bit, and 2 is
// E2M1's own largest exponent.
HR_INLINE float mxfp4_scale(float size) {
    uint32_t bits;
    memcpy(&bits, &size, 4);
    int e = (int)((bits + (1u << 21)) >> 23) - 127 - 2;
    return ldexpf(1.0f, e < -127 ? -127 : e > 127 ? 127 : e);
}
HR_INLINE float nvfp4_scale(float size, float whole) {
    float local = one(round_e4m3(vset(whole * (size / 6.0f))));
    return (local == 0.0f ? 0.125f : local) / whole;
}

// The scale of n values that share one, and the zero point if the kind has one.
inline float scale_of(const hr_input *in, const float *x, int64_t n, int32_t *zero) {
    switch (in->kind) {
    case HR_INPUT_DYNAMIC: return largest(x, n) / 127.0f;
    case HR_INPUT_INT8_TOKEN: return never_zero(largest(x, n) / 127.5f);
    case HR_INPUT_INT8_TENSOR:
    case HR_INPUT_FP8_TENSOR: return in->scale;
    case HR_INPUT_FP8_TOKEN:
    case HR_INPUT_FP8_GROUP128: return never_zero(largest(x, n) / 448.0f);
    case HR_INPUT_MXFP4: return mxfp4_scale(largest(x, n));
    case HR_INPUT_NVFP4: return nvfp4_scale(largest(x, n), in->scale);
    }
    float low = 0.0f, high = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float scale = never_zero((high - low) / 255.0f);
    *zero = (int32_t)one(vround(clamp(vset(-128.0f - low / scale), -128.0f, 127.0f)));
    return scale;
}

// W values divided by their scale and rounded to the format (integers for int8, minus the zero point).
HR_INLINE vf on_grid(int kind, vf x, float scale, int32_t zero) {
    switch (kind) {
    case HR_INPUT_INT8_TOKEN:
    case HR_INPUT_INT8_TENSOR: return vround(clamp(x / vset(scale), -128.0f, 127.0f));
    case HR_INPUT_INT8_TOKEN_ASYMMETRIC:
        return vround(clamp(x / vset(scale) + vset((float)zero), -128.0f, 127.0f)) - vset((float)zero);
    case HR_INPUT_FP8_TOKEN:
    case HR_INPUT_FP8_TENSOR:
    case HR_INPUT_FP8_GROUP128: return round_e4m3(x / vset(scale));
    case HR_INPUT_MXFP4:
    case HR_INPUT_NVFP4: return round_e2m1(x / vset(scale));
    }
    return x;
}

HR_INLINE int64_t shared_columns(int kind, int64_t columns) {
    return kind == HR_INPUT_FP8_GROUP128 ? 128 : kind == HR_INPUT_MXFP4 ? 32 : kind == HR_INPUT_NVFP4 ? 16 : columns;
}

// Round values to the format and back, in place.
inline void round_row(const hr_input *in, float *x, int64_t columns) {
    if (in->kind == HR_INPUT_NONE) return;
    int64_t share = shared_columns(in->kind, columns);
    for (int64_t k = 0; k < columns; k += share) {
        int64_t n = columns - k < share ? columns - k : share;
        int32_t zero = 0;
        float scale = scale_of(in, x + k, n, &zero);
        for (int64_t i = k; i < k + n; i += W)
            vstore_n(x + i, on_grid(in->kind, vload_n(x + i, k + n - i), scale, zero) * vset(scale), k + n - i);
    }
}

HR_INLINE int32_t store_int8(int8_t *q, vf v) {  // whole numbers; returns their sum
    vi n = __builtin_convertvector(v, vi);
    storeu(q, __builtin_convertvector(n, vb));
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)n);
#else
    int32_t sum = 0;
    for (int l = 0; l < W; l++) sum += n[l];
    return sum;
#endif
}

}  // namespace

#if defined(__AVX512F__)
#include "cpu_steps_avx512.inc"
#endif

namespace {

// `columns` is a multiple of 32 here, zeros at the end. HR_INPUT_DYNAMIC: one scale per step; other kinds: the
// scheme's scale, repeated for each step. E2M1 values are stored doubled, which makes them integers.
inline void int8_row(const hr_input *in, const float *x, int64_t columns, int8_t *q, Step *info) {
    int64_t step = in->arith == HR_ARITH_I8_ROW ? columns : in->step;
    bool dynamic = in->kind == HR_INPUT_DYNAMIC, fp4 = in->kind == HR_INPUT_MXFP4 || in->kind == HR_INPUT_NVFP4;
    int64_t share = dynamic ? step : shared_columns(in->kind, columns);
    int32_t zero = 0;
    float scale = 0.0f;
    int64_t k = 0;
#if defined(__AVX512F__)
    for (; dynamic && step == 32 && k + 512 <= columns; k += 512, info += 16) int8_sixteen(x + k, q + k, info);
#endif
    for (; k < columns; k += step, info++) {
        if (k % share == 0) scale = scale_of(in, x + k, share, &zero);
        float inverse = dynamic && scale > 0.0f ? 1.0f / scale : 0.0f;
        int32_t sum = 0;
        for (int64_t i = k; i < k + step; i += W) {
            vf v = vload(x + i);
            if (dynamic) v = vround(clamp(v * vset(inverse), -127.0f, 127.0f));
            else if (fp4) v = on_grid(in->kind, v, scale, 0) * vset(2.0f);
            else v = on_grid(in->kind, v, scale, zero) + vset((float)zero);
            sum += store_int8(q + i, v);
        }
        float unit = fp4 ? 0.5f * scale : scale;
        *info = {unit, -sum, unit * (float)sum, zero};
    }
}

// HR_INPUT_PAIR: a row of rounded values and, `piece` bytes later, a row of their rounding errors.
inline void pair_row(const hr_input *in, const float *x, int64_t columns, int8_t *coarse, int64_t piece) {
    int8_t *fine = coarse + piece;
    Step *first = (Step *)(coarse + columns), *second = (Step *)(fine + columns);
    for (int64_t k = 0; k < columns; k += in->step, first++, second++) {
        float scale = largest(x + k, in->step) / 127.0f, rest = scale / 254.0f;
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        int32_t sum = 0, left = 0;
        for (int64_t i = k; i < k + in->step; i += W) {
            vf v = vload(x + i), whole = vround(clamp(v * vset(inverse), -127.0f, 127.0f));
            vf part = (v - whole * vset(scale)) * vset(254.0f * inverse);
            sum += store_int8(coarse + i, whole);
            left += store_int8(fine + i, vround(clamp(part, -127.0f, 127.0f)));
        }
        *first = {scale, -sum, scale * (float)sum, 0};
        *second = {rest, -left, rest * (float)left, 0};
    }
}

inline void bf16_row(const float *x, int64_t columns, uint16_t *out) {
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + 16 <= columns; i += 16) storeu(out + i, _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
#endif
    for (; i < columns; i++) out[i] = to_bf16(x[i]);
}

// E4M3 values divided by their scales, then the scales: one per row, or one per `step` columns. Plain inputs are
// rounded to bfloat16.
inline void fp8_row(const hr_input *in, float *x, int64_t columns, uint16_t *out, float *scales) {
    int64_t step = in->step ? in->step : columns, share = shared_columns(in->kind, columns);
    float scale = 1.0f;
    for (int64_t k = 0; k < columns; k += step, scales++) {
        int64_t shared = columns - k < share ? columns - k : share;
        if (in->kind != HR_INPUT_NONE && k % share == 0) scale = scale_of(in, x + k, shared, nullptr);
        *scales = scale;
        int64_t end = k + step < columns ? k + step : columns;
        for (int64_t i = k; i < end; i += W) vstore(x + i, on_grid(in->kind, vload(x + i), scale, 0));
    }
    bf16_row(x, columns, out);
}

// Bytes of a prepared row: an odd number of cache lines, so that rows map to different cache sets.
HR_INLINE int64_t row_bytes(const hr_input *in, int64_t columns) {
    int64_t wide = padded(columns), bytes = 4 * wide;
    if (in->arith == HR_ARITH_BF16) bytes = 2 * wide;
    if (in->arith == HR_ARITH_F8) bytes = 2 * wide + (in->step ? (wide + in->step - 1) / in->step : 1) * 4;
    if (in->arith == HR_ARITH_I8 || in->arith == HR_ARITH_I8_PAIR)
        bytes = wide + wide / in->step * (int64_t)sizeof(Step);
    if (in->arith == HR_ARITH_I8_ROW) bytes = wide + (int64_t)sizeof(Step);
    bytes = ((bytes + 63) / 64 | 1) * 64;
    return in->arith == HR_ARITH_I8_PAIR ? 2 * bytes : bytes;
}

// Prepare one row. `buffer` holds a padded row of floats and belongs to this thread.
inline void prepare_row(const hr_input *in, const float *x, int64_t columns, float *buffer, char *out) {
    int64_t wide = padded(columns);
    bool floats = in->arith == HR_ARITH_F32;
    float *row = floats ? (float *)out : buffer;
    if (in->order)
        for (int64_t k = 0; k < columns; k++) row[k] = x[in->order[k]];
    else if ((in->kind == HR_INPUT_DYNAMIC || in->kind == HR_INPUT_PAIR) && !floats && wide == columns)
        row = (float *)x;
    else memcpy(row, x, (size_t)columns * 4);
    if (row != x) memset(row + columns, 0, (size_t)(wide - columns) * 4);
    if (in->arith == HR_ARITH_I8 || in->arith == HR_ARITH_I8_ROW) {
        int8_row(in, row, wide, (int8_t *)out, (Step *)(out + wide));
    } else if (in->arith == HR_ARITH_I8_PAIR) {
        pair_row(in, row, wide, (int8_t *)out, row_bytes(in, columns) / 2);
    } else if (in->arith == HR_ARITH_F8) {
        fp8_row(in, row, wide, (uint16_t *)out, (float *)(out + 2 * wide));
    } else {
        round_row(in, row, columns);
        if (in->arith == HR_ARITH_BF16) bf16_row(row, wide, (uint16_t *)out);
    }
}

}  // namespace
#endif
