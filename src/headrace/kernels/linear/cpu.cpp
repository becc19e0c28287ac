// Linear: a weight against the rows of x.
#include "cpu_run.h"

void hr_linear_run(const hr_linear_args *args, const int32_t *rows, float soft_cap, hr_ctx *ctx) {
    run_linear(args, rows, ctx, Plain{soft_cap});
}

HR_KERNEL(linear) { hr_linear_run((const hr_linear_args *)args, nullptr, 0.0f, ctx); }
