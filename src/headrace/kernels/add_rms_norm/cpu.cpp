// Residual addition and RMSNorm in one pass: total = x + residual, y = rms_norm(total).
#include "norm.h"

struct add_rms_norm_args {
    const float *x, *residual, *weight;
    float *y, *total;
    hr_dim rows;
    int32_t width;
    float eps;
};
HR_LAYOUT(add_rms_norm_args, x, residual, weight, y, total, rows, width, eps);

HR_KERNEL(add_rms_norm) {
    const auto *a = (const add_rms_norm_args *)args;
    int64_t begin, end, n = a->width;
    hr_share(ctx, hr_size(ctx, a->rows), 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * n, *residual = a->residual + r * n;
        float *total = a->total + r * n;
        int64_t i = 0;
        for (; i + W <= n; i += W) vstore(total + i, vload(x + i) + vload(residual + i));
        for (; i < n; i++) total[i] = x[i] + residual[i];
        norm_row(total, a->weight, a->y + r * n, n, sum_of_squares(total, n), a->eps);
    }
}
