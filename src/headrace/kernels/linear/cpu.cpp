// Linear: a weight times the rows of x.
#include "cpu_run.h"
#include "cpu_whole.h"

namespace {

// The products of the panels, and c tanh(y / c) if `soft_cap` c isn't 0.
struct Plain {
    static constexpr int64_t ROOM = 0;
    float soft_cap = 0.0f;

    int64_t units(const LinearRun &run) const { return run.panels; }
    void operator()(const LinearRun &run, int64_t unit, int64_t begin, int64_t end) const {
        Place at = run.place(unit);
        int64_t stride = run.args->ldy;
        float *y = run.args->y + (run.first + begin) * stride + at.column;
        run.product(at, begin, end, {y, stride, at.rows, run.bias(at)});
        for (int64_t r = begin; r < end && soft_cap != 0.0f; r++, y += stride)
            for (int64_t i = 0; i < at.rows; i += W) {
                vf capped = vset(soft_cap) * vtanh(vload_n(y + i, at.rows - i) / vset(soft_cap));
                vstore_n(y + i, capped, at.rows - i);
            }
    }
};

}  // namespace

void hr_linear_run(const hr_linear_args *args, const int32_t *rows, float soft_cap, hr_ctx *ctx) {
    run_linear(args, rows, ctx, Plain{soft_cap});
}

HR_KERNEL(linear) { hr_linear_run((const hr_linear_args *)args, nullptr, 0.0f, ctx); }
