// The limits of this machine: the speed of reading memory, and of products in registers. `headrace bench` compares
// kernels with them.
#include "cpu_panel.h"

struct hr_limit_args {
    const char *data;  // limit_read: bytes to read, each thread reads its share
    int64_t bytes;
    int64_t rounds;  // the others: of 16 products of 16 rows each
    float *sink;     // [threads * 16]
};
HR_LAYOUT(hr_limit_args, data, bytes, rounds, sink);

namespace {

constexpr int CHAINS = 16;

HR_INLINE F as_floats(F v) { return v; }
HR_INLINE F as_floats(I v) { return to_f(v); }

// Chains that differ from the start, so that the compiler cannot remove one.
template <class Sum, class Step> HR_INLINE void spin(const hr_limit_args *a, hr_ctx *ctx, Sum unit, Step step) {
    float *sink = a->sink + 16 * ctx->part;
    Sum sums[CHAINS];
    sums[0] = unit;
    for (int i = 1; i < CHAINS; i++) sums[i] = step(sums[i - 1]);
    for (int64_t n = 0; n < a->rounds; n++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) sums[i] = step(sums[i]);
    }
    F total = as_floats(sums[0]);
    for (int i = 1; i < CHAINS; i++) total = fadd(total, as_floats(sums[i]));
    fstore(sink, total);
}

#ifdef HEADRACE_LINEAR_AMX_H
// On tiles: a product of two is 256 of a vector with two or four columns, and four sums keep the unit busy.
template <bool Float> inline void spin_tiles(const hr_limit_args *a, hr_ctx *ctx) {
    Shapes shapes;
    alignas(64) float sums[TILES * 256] = {};
    shapes.columns_of_sums(TILES, 16);
    _tile_loadd(4, a->data, 64);
    _tile_loadd(5, a->data, 64);
    _tile_loadd(6, a->data, 64);
    _tile_loadd(7, a->data, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t n = 0; n < a->rounds * CHAINS; n += TILES * 256) {
        if constexpr (Float) {
            _tile_dpbf16ps(0, 4, 7);
            _tile_dpbf16ps(1, 5, 7);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 6, 7);
        } else {
            _tile_dpbsud(0, 4, 7);
            _tile_dpbsud(1, 5, 7);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 6, 7);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    fstore(a->sink + 16 * ctx->part, fload(sums));
}
#endif

}  // namespace

HR_KERNEL(limit_read) {
    const auto *a = (const hr_limit_args *)args;
    int64_t begin, end;
    hr_share(ctx, a->bytes, 4096, &begin, &end);
    C all = cload(a->data + begin);
    for (int64_t i = begin; i + 256 <= end; i += 256) {
        for (int j = 0; j < 256; j += 64) {
            prefetch(a->data + i + j + 8192);
            all = cor(all, cload(a->data + i + j));
        }
    }
    fstore(a->sink + 16 * ctx->part, column<0>(all));
}

HR_KERNEL(limit_f32) {
    const auto *a = (const hr_limit_args *)args;
    F x = fload(a->sink + 16 * ctx->part);
    spin(a, ctx, fset(1.0f), [=](F sum) { return ffma(x, x, sum); });
}

HR_KERNEL(limit_bf16) {
    const auto *a = (const hr_limit_args *)args;
#ifdef HEADRACE_LINEAR_AMX_H
    return spin_tiles<true>(a, ctx);
#endif
    C x = cload(a->sink + 16 * ctx->part);
    int32_t pair = load_i32(a->data);
    spin(a, ctx, fset(1.0f), [=](F sum) { return bf_dot(sum, x, &pair); });
}

HR_KERNEL(limit_int8) {
    const auto *a = (const hr_limit_args *)args;
#ifdef HEADRACE_LINEAR_AMX_H
    return spin_tiles<false>(a, ctx);
#endif
    C x = cload(a->sink + 16 * ctx->part);
    int32_t quad = load_i32(a->data);
    spin(a, ctx, iset16(1), [=](I sum) { return dot<true>(sum, x, &quad); });
}
