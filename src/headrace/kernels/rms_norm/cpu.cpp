// RMSNorm: y = x * (1 / sqrt(mean(x^2) + eps)) * weight, one row by one thread.
#include "norm.h"

struct rms_norm_args {
    const float *x, *weight;
    float *y;
    hr_dim rows;
    int32_t width;
    float eps;
};
HR_LAYOUT(rms_norm_args, x, weight, y, rows, width, eps);

HR_KERNEL(rms_norm) {
    const auto *a = (const rms_norm_args *)args;
    int64_t begin, end;
    hr_share(ctx, hr_size(ctx, a->rows), 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->width;
        norm_row(x, a->weight, a->y + r * a->width, a->width, sum_of_squares(x, a->width), a->eps);
    }
}
