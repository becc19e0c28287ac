// Gate and up, one panel of each at a time, and their gated activation while they are in the L1 cache.
#include "../gated_activation/cpu_activate.h"
#include "../linear/cpu_run.h"

struct gated_linear_args {
    hr_linear_args linear;  // the weight's panels: first those of gate, then the same number of up; y: [M, F]
    int32_t kind;
};
HR_LAYOUT(gated_linear_args, linear, kind);

namespace {

// Both products of a block of rows.
struct Halves {
    static constexpr int64_t ROOM = 2 * RUN_BLOCK * 16;  // floats
    const gated_linear_args *args;

    int64_t units(const LinearRun &run) const { return run.panels / 2; }
    void operator()(const LinearRun &run, int64_t unit, int64_t begin, int64_t end) const {
        float *gate = run.room, *up = gate + RUN_BLOCK * 16;
        for (int64_t r = begin; r < end; r += RUN_BLOCK) {
            int64_t rows = end - r < RUN_BLOCK ? end - r : RUN_BLOCK;
            Place at = run.place(unit), other = run.place(unit + run.panels / 2);
            run.product(at, r, r + rows, {gate, 16, at.rows, run.bias(at)});
            run.product(other, r, r + rows, {up, 16, other.rows, run.bias(other)});
            float *y = args->linear.y + (run.first + r) * args->linear.ldy + at.column;
            activate_block(args->kind, gate, up, rows, at.rows, y, args->linear.ldy);
        }
    }
};

}  // namespace

HR_KERNEL(gated_linear) {
    const auto *a = (const gated_linear_args *)args;
    run_linear(&a->linear, nullptr, ctx, Halves{a});
}
