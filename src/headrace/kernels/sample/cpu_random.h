// Philox4x32-10 (Salmon et al., SC'11) and the Gumbel noise of `philox.py`, for vectors of tokens.
#ifndef HEADRACE_SAMPLE_RANDOM_H
#define HEADRACE_SAMPLE_RANDOM_H
#include "simd.h"

namespace {

HR_INLINE void wide_product(vu a, uint32_t b, vu *high, vu *low) {
#if defined(__AVX512F__)
    __m512i x = (__m512i)a, y = _mm512_set1_epi32((int)b);
    __m512i even = _mm512_mul_epu32(x, y), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), y);
    *low = (vu)_mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    *high = (vu)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
#else
    for (int i = 0; i < W; i++) {
        uint64_t p = (uint64_t)a[i] * b;
        (*high)[i] = (uint32_t)(p >> 32);
        (*low)[i] = (uint32_t)p;
    }
#endif
}

// words[j][i]: word j of the quad `quad[i]`.
HR_INLINE void philox(vu quad, uint32_t position, uint64_t seed, vu (&words)[4]) {
    vu c0 = quad, c1 = (vu)iset((int32_t)position), c2 = {}, c3 = {};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vu h0, l0, h2, l2;
        wide_product(c0, 0xD2511F53u, &h0, &l0);
        wide_product(c2, 0xCD9E8D57u, &h2, &l2);
        c0 = h2 ^ c1 ^ k0, c1 = l2, c2 = h0 ^ c3 ^ k1, c3 = l0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

constexpr float MOST_NOISE = 23.0f;  // that of the word 0 is 22.87

HR_INLINE vf gumbel_of(vu word) {
    vf u = (__builtin_convertvector(word, vf) + vset(0.5f)) * vset(2.3283064365386963e-10f);
    vf e = vneglog1m(vmin(u, vset(0.999999940395355224609375f)));
    return -vlog(e);
}

// The noise of the words of quads q .. q + W - 1, in the order of their tokens.
HR_INLINE void gumbel_block(const vu (&words)[4], float (&noise)[4 * W]) {
    for (int j = 0; j < 4; j++) {
        vf g = gumbel_of(words[j]);
        for (int i = 0; i < W; i++) noise[4 * i + j] = g[i];
    }
}
// Whether a word may give noise of `level`: that of u is at most -log(u). Errors are far below the margin.
HR_INLINE bool reaches(const vu (&words)[4], float level) {
    float share = sexp(0.01f - level);
    if (!(share < 1.0f)) return true;
    vu limit = (vu)iset((int32_t)(uint32_t)(share * 4294967296.0f));
    return any((words[0] <= limit) | (words[1] <= limit) | (words[2] <= limit) | (words[3] <= limit));
}
HR_INLINE float gumbel_one(int64_t token, uint32_t position, uint64_t seed) {
    vu words[4];
    philox((vu)iset((int32_t)(token / 4)), position, seed, words);
    return gumbel_of(words[token % 4])[0];
}

}  // namespace
#endif
