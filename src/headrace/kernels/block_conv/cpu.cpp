// y_r[c] = sum over taps t of (base[t, c] + kernel_r[side, t, c div group]) * x_(r - t)[c], within blocks of rows.
#include "headrace.h"
#include "simd.h"

struct block_conv_args {
    const float *x, *kernel, *base;  // [T, H], [T, 2 taps groups], [taps, H]
    float *y;
    hr_dim rows;
    int32_t width, groups, taps, side, block;
};
HR_LAYOUT(block_conv_args, x, kernel, base, y, rows, width, groups, taps, side, block);

HR_KERNEL(block_conv) {
    const auto *a = (const block_conv_args *)args;
    int64_t begin, end, n = a->width, group = n / a->groups;
    hr_share(ctx, hr_size(ctx, a->rows), 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *own = a->kernel + (2 * r + a->side) * a->taps * a->groups;
        float *y = a->y + r * n;
        for (int64_t t = 0; t < a->taps && t <= r % a->block; t++) {
            const float *x = a->x + (r - t) * n, *base = a->base + t * n;
            for (int64_t g = 0; g < a->groups; g++) {
                vf part = vset(own[t * a->groups + g]);
                for (int64_t i = g * group, stop = i + group; i < stop; i += W) {
                    vf value = vload_n(x + i, stop - i) * (vload_n(base + i, stop - i) + part);
                    if (t) value = vload_n(y + i, stop - i) + value;
                    vstore_n(y + i, value, stop - i);
                }
            }
        }
    }
}
