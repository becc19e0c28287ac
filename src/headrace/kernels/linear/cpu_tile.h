// The inner products: R rows of prepared inputs against one panel of 16 rows of the weight.
//
// Every output element is one chain of additions over ascending columns for every R, so its bits don't depend on the
// number of rows in a tile.
#ifndef HEADRACE_LINEAR_TILE_H
#define HEADRACE_LINEAR_TILE_H
#include "cpu_codes.h"

namespace {

// The data behind a row's int8 values, one per step.
struct Step {
    float scale;
    int32_t minus_sum;  // of the int8 values
    float sum;          // times the scale
    int32_t zero;       // HR_INPUT_INT8_TOKEN_ASYMMETRIC
};

constexpr int AHEAD = 8192;  // bytes to prefetch

// A panel's codes and the regions behind them, for the prefetch of the same regions of a later panel.
struct Stream {
    const uint8_t *codes, *end, *next_tail;
    int64_t tail;  // bytes between the end of the codes and the next panel
    int64_t jump;  // from codes to those of a later panel

    // The address to prefetch when p is read.
    inline __attribute__((always_inline)) const uint8_t *ahead(const uint8_t *p) const {
        return p + AHEAD < end ? p + AHEAD : p + jump;
    }
    inline __attribute__((always_inline)) void fetch_tail(int64_t step) const {
        if (step * 64 < tail) prefetch(next_tail + step * 64);
    }
};

HR_INLINE Stream stream_of(const hr_part *part, const uint8_t *panel, int64_t codes) {
    int64_t size = part->panel_bytes, tail = size - codes;
    if (codes >= AHEAD) return {panel, panel + codes, panel + size + codes, tail, AHEAD + tail};
    // Complete panels: a shorter jump would skip codes and prefetch tails twice.
    int64_t jump = (AHEAD + size - 1) / size * size;
    return {panel, panel, panel + jump + codes, tail, jump};
}

template <class Codes, int R, int J, int End>
HR_INLINE void dot_quads(Codes codes, const uint8_t *p, const uint8_t *ahead, const int8_t *x, int64_t stride,
                         I *sums) {
    if constexpr (J < End) {
        C w = codes.template get<J>(p);
        if constexpr (J == 0 || J * Codes::BITS / 8 != (J - 1) * Codes::BITS / 8)
            prefetch(ahead + J * Codes::BITS / 8 * 64);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) sums[r] = dot<Codes::SMALL>(sums[r], w, x + r * stride + 4 * J);
        dot_quads<Codes, R, J + 1, End>(codes, p, ahead, x, stride, sums);
    }
}

template <class Codes, int Columns, bool Min, int R>
inline void tile_i8(Codes codes, const Stream &from, int64_t steps, int offset_bits, const float *scales,
                    const float *addends, const int8_t *x, int64_t stride, const Step *info, F *out) {
    const uint8_t *p = from.codes;
    F acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = fzero();
    for (int64_t t = 0; t < steps; t++) {
        I sums[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const Step *s = (const Step *)((const char *)info + r * stride) + t;
            sums[r] = offset_bits < 0 ? iset16(0) : ishl(iset16(s->minus_sum), offset_bits);
        }
        dot_quads<Codes, R, 0, Columns / 4>(codes, p, from.ahead(p), x, stride, sums);
        from.fetch_tail(t);
        F scale = fload(scales + 16 * t), addend = Min ? fload(addends + 16 * t) : fzero();
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const Step *s = (const Step *)((const char *)info + r * stride) + t;
            acc[r] = ffma(to_f(sums[r]), fmul(scale, fset(s->scale)), acc[r]);
            if (Min) acc[r] = ffma(addend, fset(s->sum), acc[r]);
        }
        p += Columns * 2 * Codes::BITS;
        x += Columns;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) out[r] = acc[r];
}

// One integer sum over all columns, scaled once.
template <class Codes, int R>
inline void tile_i8_row(Codes codes, const Stream &from, int64_t steps, int offset_bits, F scale, I row_sums,
                        const int8_t *x, int64_t stride, const Step *info, F *out) {
    const uint8_t *p = from.codes;
    I sums[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        const Step *s = (const Step *)((const char *)info + r * stride);
        sums[r] = offset_bits < 0 ? iset16(0) : ishl(iset16(s->minus_sum), offset_bits);
    }
    for (int64_t t = 0; t < steps; t++, p += 64 * Codes::BITS, x += 32) {
        dot_quads<Codes, R, 0, 8>(codes, p, from.ahead(p), x, stride, sums);
        from.fetch_tail(t);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        const Step *s = (const Step *)((const char *)info + r * stride);
        I exact = isub(sums[r], imul(iset16(s->zero), row_sums));
        out[r] = fmul(to_f(exact), fmul(scale, fset(s->scale)));
    }
}

// Adds to `out`.
template <int R>
inline void tile_bf16(const uint8_t *p, int64_t pairs, int64_t ahead, const uint8_t *x, int64_t stride, F *out) {
    F acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = out[r];
    for (int64_t k = 0; k < pairs; k++, p += 64, x += 4) {
        C w = cload(p);
        prefetch(p + ahead);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) acc[r] = bf_dot(acc[r], w, x + r * stride);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) out[r] = acc[r];
}

// Adds to `out`.
template <int R> inline void tile_f32(const float *w, int64_t columns, const float *x, int64_t stride, F *out) {
    F acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) acc[r] = out[r];
    for (int64_t k = 0; k < columns; k++, w += 16) {
        F v = fload(w);
        prefetch((const char *)w + AHEAD);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) acc[r] = ffma(v, fset(x[r * stride + k]), acc[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) out[r] = acc[r];
}

}  // namespace
#endif
