// Vectors of the instruction set a file is compiled for, as compiler vector types: 16 floats with AVX-512, 8 with AVX2,
// 4 elsewhere (SSE2, NEON). Products are fused only by `vfma`. Every function computes a lane from that lane's operands
// only, so bits don't depend on the position of an element in a vector.
#ifndef HEADRACE_SIMD_H
#define HEADRACE_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define HR_W 16
#elif defined(__AVX2__)
#define HR_W 8
#else
#define HR_W 4
#endif
#define HR_INLINE static inline __attribute__((always_inline, unused))

namespace {

constexpr int W = HR_W;
typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef int8_t vb __attribute__((vector_size(W)));

HR_INLINE vf vset(float x) { return x - (vf){}; }
HR_INLINE vi iset(int32_t x) { return x - (vi){}; }
HR_INLINE vi lanes() {
    vi r;
    for (int i = 0; i < W; i++) r[i] = i;
    return r;
}
template <class V, class T> HR_INLINE V loadu(const T *p) {
    V v;
    memcpy(&v, p, sizeof(V));
    return v;
}
template <class V, class T> HR_INLINE void storeu(T *p, V v) { memcpy(p, &v, sizeof(V)); }
HR_INLINE vf vload(const float *p) { return loadu<vf>(p); }
HR_INLINE void vstore(float *p, vf v) { storeu(p, v); }
// The first n lanes (0 <= n <= W); the other lanes of a load are `fill`, those of a store are not written.
HR_INLINE vf vload_n(const float *p, int64_t n, float fill = 0.0f) {
    if (n >= W) return vload(p);
    vf v = vset(fill);
    if (n > 0) memcpy(&v, p, (size_t)n * 4);
    return v;
}
HR_INLINE void vstore_n(float *p, vf v, int64_t n) {
    if (n >= W) vstore(p, v);
    else if (n > 0) memcpy(p, &v, (size_t)n * 4);
}

HR_INLINE vf vfma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
// b if either is NaN, like the instructions.
#if defined(__AVX512F__)
HR_INLINE vf vmax(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
HR_INLINE vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
HR_INLINE vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
HR_INLINE vf vmin(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
HR_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
HR_INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
#endif
HR_INLINE vf vabs(vf a) { return (vf)((vu)a & 0x7fffffffu); }
HR_INLINE vf vround(vf x) {  // to the nearest, halves to even; |x| < 2^22
#if defined(__AVX512F__)
    return (vf)_mm512_roundscale_ps((__m512)x, 0);
#elif defined(__AVX2__)
    return (vf)_mm256_round_ps((__m256)x, 0);
#else
    const vf magic = vset(12582912.0f);
    return (x + magic) - magic;
#endif
}
HR_INLINE vf vsqrt(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#else
    vf r;
    for (int i = 0; i < W; i++) r[i] = sqrtf(x[i]);
    return r;
#endif
}
// Horizontal reductions by halves.
HR_INLINE float hsum(vf v) {
    float t[W];
    memcpy(t, &v, sizeof(v));
    for (int n = W / 2; n; n /= 2)
        for (int i = 0; i < n; i++) t[i] = t[i] + t[i + n];
    return t[0];
}
HR_INLINE float hmax(vf v) {
#if defined(__AVX512F__)
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
#endif
    float t[W];
    memcpy(t, &v, sizeof(v));
    for (int n = W / 2; n; n /= 2)
        for (int i = 0; i < n; i++) t[i] = t[i] > t[i + n] ? t[i] : t[i + n];
    return t[0];
}

// Whether any lane of a comparison is true.
HR_INLINE bool any(vi mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    int32_t all = 0;
    for (int i = 0; i < W; i++) all |= mask[i];
    return all != 0;
#endif
}

// p 2^n for integral n in [-200, 129].
HR_INLINE vf vscale2(vf p, vf n) {
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi k = __builtin_convertvector(vmax(n, vset(-127.0f)), vi) + 127;
    k = k > 255 ? iset(255) : k;
    return p * (vf)(k << 23);
#endif
}
// 2^x, minimax polynomial on [-1/2, 1/2], exactly 1 at 0, 0 for x < -150. Relative error 1e-7 (Degree 5), or 1e-4 (3)
// for x < 129.
template <int Degree = 5> HR_INLINE vf vexp2(vf x) {
    x = vmax(x, vset(-200.0f));
    if (Degree == 5) x = vmin(x, vset(129.0f));
    vf n = vround(x), r = x - n, p;
    if (Degree == 3) {
        p = vfma(vset(0.05500894784927368f), r, vset(0.2422109991312027f));
        p = vfma(p, r, vset(0.6932829022407532f));
    } else {
        p = vfma(vset(0.001326472731307149f), r, vset(0.009671512991189957f));
        p = vfma(p, r, vset(0.05550733581185341f));
        p = vfma(p, r, vset(0.24022242426872253f));
        p = vfma(p, r, vset(0.6931470036506653f));
    }
    return vscale2(vfma(p, r, vset(1.0f)), n);
}
constexpr float LOG2E = 1.44269504088896341f;
// e^x: the argument's fraction is reduced in two parts, so that large |x| keep their precision.
HR_INLINE vf vexp(vf x) {
    x = vmin(vmax(x, vset(-110.0f)), vset(89.0f));
    vf n = vround(x * vset(LOG2E));
    vf r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r) * vset(LOG2E);
    vf p = vfma(vset(0.001326472731307149f), r, vset(0.009671512991189957f));
    p = vfma(p, r, vset(0.05550733581185341f));
    p = vfma(p, r, vset(0.24022242426872253f));
    p = vfma(p, r, vset(0.6931470036506653f));
    return vscale2(vfma(p, r, vset(1.0f)), n);
}
HR_INLINE vf vtanh(vf x) {
    vf a = vabs(x), u = x * x;
    vf p = vfma(vset(0.01564048044383526f), u, vset(-0.05223110690712929f));
    p = vfma(p, u, vset(0.13313521444797516f));
    p = vfma(p, u, vset(-0.33332622051239014f));
    vf small = vfma(x * u, p, x);
    vf large = vset(1.0f) - vset(2.0f) / (vexp(vset(2.0f) * a) + vset(1.0f));
    large = (vf)((vu)large | ((vu)x & 0x80000000u));
    return a < vset(0.6f) ? small : large;
}
// Abramowitz and Stegun 7.1.26; absolute error 1.5e-7.
HR_INLINE vf verf(vf x) {
    vf a = vabs(x), t = vset(1.0f) / vfma(vset(0.3275911f), a, vset(1.0f));
    vf p = vfma(vset(1.061405429f), t, vset(-1.453152027f));
    p = vfma(p, t, vset(1.421413741f));
    p = vfma(p, t, vset(-0.284496736f));
    p = vfma(p, t, vset(0.254829592f));
    vf y = vset(1.0f) - p * t * vexp(-(a * a));
    return (vf)((vu)y | ((vu)x & 0x80000000u));
}

// ln x for positive normal x: x = m 2^k with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)). About one
// ulp.
HR_INLINE vf vlog(vf x) {
    vi bits = (vi)x - 0x3f3504f3;
    vf k = __builtin_convertvector(bits >> 23, vf), m = (vf)((bits & 0x7fffff) + 0x3f3504f3);
    vf s = (m - vset(1.0f)) / (m + vset(1.0f)), u = s * s;
    vf p = vfma(vfma(vset(0.29872310161590576f), u, vset(0.3997752070426941f)), u, vset(0.6666677594184875f));
    vf low = vfma(s * u, p, k * vset(-2.12194440e-4f));
    return vfma(k, vset(0.693359375f), vfma(vset(2.0f), s, low));
}
// -ln(1 - u) for u in (0, 1), exact to an ulp or two also where u is tiny (Kahan's correction of the rounded 1 - u).
HR_INLINE vf vneglog1m(vf u) {
    vf w = vset(1.0f) - u, d = vset(1.0f) - w;
    vf safe = d > 0.0f ? d : vset(1.0f);
    return d > 0.0f ? -vlog(w) * (u / safe) : u;
}

// Scalars go through one lane of the same code, so that they agree with vectors to the bit.
HR_INLINE float sexp(float x) { return vexp(vset(x))[0]; }
HR_INLINE float sexp2(float x) { return vexp2<5>(vset(x))[0]; }

HR_INLINE uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
HR_INLINE float from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
HR_INLINE uint16_t to_f16(float x) {
#if defined(__F16C__)
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), 0), 0);
#else
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x33000001u) return (uint16_t)sign;
    int e = (int)(a >> 23) - 112;
    uint32_t m = (a & 0x7fffffu) | 0x800000u, shift = e >= 1 ? 13u : (uint32_t)(14 - e);
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    return (uint16_t)(sign | (e >= 1 ? q + ((uint32_t)(e - 1) << 10) : q));
#endif
}
HR_INLINE vf from_f16(vh h) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vu u = __builtin_convertvector(h, vu), sign = (u & 0x8000u) << 16, a = u & 0x7fffu;
    vf big = (vf)((a << 13) + (a >= 0x7c00u ? iset(224 << 23) : iset(112 << 23)));
    vf tiny = __builtin_convertvector((vi)a, vf) * vset(5.9604644775390625e-8f);
    return (vf)((vu)(a < 0x400u ? tiny : big) | sign);
#endif
}
// OCP E4M3 (one NaN, no infinity): nearest, ties to even, |x| <= 448 expected.
HR_INLINE uint8_t to_e4m3(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    int e = (int)(a >> 23) - 120;
    uint32_t m = (a & 0x7fffffu) | 0x800000u, shift = e >= 1 ? 20u : (uint32_t)(21 - e);
    if (shift > 25) return (uint8_t)sign;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    q = e >= 1 ? q + ((uint32_t)(e - 1) << 3) : q;
    return (uint8_t)(sign | (q > 0x7e ? 0x7eu : q));
}
HR_INLINE vf from_e4m3(vu u) {
    vu sign = (u & 0x80u) << 24, a = u & 0x7fu;
    vf big = (vf)((a << 20) + (120u << 23));
    vf tiny = __builtin_convertvector((vi)a, vf) * vset(0.001953125f);
    vf r = (vf)((vu)(a < 8u ? tiny : big) | sign);
    return a == 0x7fu ? vset(__builtin_nanf("")) : r;
}

}  // namespace
#endif
