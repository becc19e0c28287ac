// The matrix products of attention: MR rows of A times NV vectors of columns. Each element of the result is one chain of
// multiply-adds in the order of k, so tiles of any size give the same bits.
//
// Keys and values of 16 bits or fewer are columns of bfloat16 pairs, two terms of a product side by side. With the dot
// product of such pairs (HR_DOT), rows of A are pairs as well. Without, they stay float32, and the two halves of a pair
// become two columns. Processors of Intel take the second form though they have the instruction: it takes two cycles
// there, in which they make four multiply-adds.
#ifndef HEADRACE_ATTENTION_PRODUCT_H
#define HEADRACE_ATTENTION_PRODUCT_H
#include "simd.h"

#if defined(__AVX512BF16__)
#define HR_DOT 1
#else
#define HR_DOT 0
#endif
#if defined(__AVX512F__)
#define HR_PAIRS 1  // panels of bfloat16 pairs
#else
#define HR_PAIRS 0
#endif

namespace {

constexpr int MR = HR_PAIRS && !HR_DOT ? 5 : 6;  // sums, halves of columns and rows fit the registers
constexpr int NV = W == 8 ? 2 : 4;            // 64 columns with AVX-512, 16 elsewhere
constexpr int GROUP_VECTORS = 16 / W;         // vectors of the 16 keys of a group
constexpr int NG = NV / GROUP_VECTORS > 0 ? NV / GROUP_VECTORS : 1;

// 32-bit words of a row of A that meet a word of a column.
template <bool Pairs> constexpr int WORDS = Pairs && !HR_DOT ? 2 : 1;

// acc[r][v] += a[r][k] * b[v][k], k ascending. `b` holds 32-bit steps (a float or a pair): vector v of step k is at
// b[v] + k * stride.
template <bool Pairs, int R, int V>
HR_INLINE void multiply(vf (&acc)[R][V], const uint32_t *a, int64_t lda, int64_t steps, const uint32_t *const (&b)[V],
                        int64_t stride) {
    for (int64_t k = 0; k < steps; k++) {
        vu column[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) column[v] = loadu<vu>(b[v] + k * stride);
        if constexpr (WORDS<Pairs> == 2) {
            vf odd[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) odd[v] = (vf)(column[v] & 0xffff0000u), column[v] = column[v] << 16;
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vf first = (vf)iset((int32_t)a[r * lda + 2 * k]), second = (vf)iset((int32_t)a[r * lda + 2 * k + 1]);
#pragma GCC unroll 8
                for (int v = 0; v < V; v++) acc[r][v] = vfma(first, (vf)column[v], acc[r][v]);
#pragma GCC unroll 8
                for (int v = 0; v < V; v++) acc[r][v] = vfma(second, odd[v], acc[r][v]);
            }
            continue;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vu row = (vu)iset((int32_t)a[r * lda + k]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
#if HR_DOT
                if (Pairs) {
                    acc[r][v] = (vf)_mm512_dpbf16_ps((__m512)acc[r][v], (__m512bh)row, (__m512bh)column[v]);
                    continue;
                }
#endif
                acc[r][v] = vfma((vf)row, (vf)column[v], acc[r][v]);
            }
        }
    }
}

// Scores of R rows with the 16 keys of each of G groups: out[r][16 g + key]; top[r]: the maximum of each lane.
template <bool Pairs, int R, int G>
void score_groups(const uint32_t *q, int64_t ldq, int64_t steps, const uint32_t *const *groups, float *out, int64_t ldo,
                  vf *top) {
    constexpr int V = G * GROUP_VECTORS;
    const uint32_t *b[V];
    for (int v = 0; v < V; v++) b[v] = groups[v / GROUP_VECTORS] + v % GROUP_VECTORS * W;
    vf acc[R][V] = {};
    multiply<Pairs, R, V>(acc, q, ldq, steps, b, 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        vf high = top[r];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            vstore(out + r * ldo + v * W, acc[r][v]);
            high = vmax(acc[r][v], high);
        }
        top[r] = high;
    }
}

// R rows of weights times `count` groups of values, V vectors of columns from `column` on, added to the rows' running
// sums: out = out * keep[r] + sum * take[r].
template <bool Pairs, int R, int V>
void mix_groups(const uint32_t *p, int64_t ldp, const uint32_t *const *groups, int64_t count, int64_t padded,
                int64_t column, const float *keep, const float *take, float *out) {
    constexpr int STEPS = Pairs ? 8 : 16;
    vf acc[R][V] = {};
    for (int64_t g = 0; g < count; g++) {
        const uint32_t *b[V];
        for (int v = 0; v < V; v++) b[v] = groups[g] + column + v * W;
        multiply<Pairs, R, V>(acc, p + g * STEPS * WORDS<Pairs>, ldp, STEPS, b, padded);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            float *o = out + r * padded + column + v * W;
            vstore(o, vfma(vload(o), vset(keep[r]), acc[r][v] * vset(take[r])));
        }
}

// The same for any number of rows and groups.
template <bool Pairs, int R>
void score_rows(const uint32_t *q, int64_t ldq, int64_t steps, const uint32_t *const *groups, int64_t count, float *out,
                int64_t ldo, vf *top) {
    int64_t g = 0;
    for (; g + NG <= count; g += NG) score_groups<Pairs, R, NG>(q, ldq, steps, groups + g, out + 16 * g, ldo, top);
    for (; g < count; g++) score_groups<Pairs, R, 1>(q, ldq, steps, groups + g, out + 16 * g, ldo, top);
}

template <bool Pairs, int R>
void mix_rows(const uint32_t *p, int64_t ldp, const uint32_t *const *groups, int64_t count, int64_t padded,
              const float *keep, const float *take, float *out) {
    int64_t c = 0;
    for (; c + NV * W <= padded; c += NV * W)
        mix_groups<Pairs, R, NV>(p, ldp, groups, count, padded, c, keep, take, out);
    for (; c < padded; c += W) mix_groups<Pairs, R, 1>(p, ldp, groups, count, padded, c, keep, take, out);
}

#define HR_BY_ROWS(rows, CALL) \
    switch (rows) {            \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(MR); break; \
    }

}  // namespace
#endif
