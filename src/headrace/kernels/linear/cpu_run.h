// A weight times many rows, for operators that process the result: rows are prepared once for all panels, work is
// distributed to parts, and each panel is read once per block of rows.
#ifndef HEADRACE_LINEAR_RUN_H
#define HEADRACE_LINEAR_RUN_H
#include "cpu_panel.h"

namespace {

constexpr int64_t RUN_BLOCK = 128;         // rows per unit of work
constexpr int64_t RUN_FEW = 64;            // up to here a product is memory-bound: every part streams one run of panels
constexpr int64_t RUN_ALONE = 1 << 13;     // up to here each part prepares all inputs itself instead of waiting
constexpr int64_t RUN_MOST = 1024;         // rows that are prepared at a time

// A panel: its part, and the columns of the product that are its rows.
struct Place {
    const hr_part *part;
    int64_t panel, column, rows;
};

struct LinearRun {
    const hr_linear_args *args;
    const int32_t *rows;
    hr_ctx *ctx;
    int64_t columns, panels, bytes;  // bytes: of one row in all its prepared forms
    float *scratch, *room;           // for products; for processing them
    char *prepared;
    int64_t first, count;            // rows of this pass

    const hr_packed *weight() const { return args->weight; }
    bool direct(const hr_input *in) const {
        return in->arith == HR_ARITH_F32 && in->kind == HR_INPUT_NONE && !in->order && !rows;
    }
    void prepare(int64_t begin, int64_t end) const {
        char *form = prepared;
        for (int i = 0; i < weight()->num_inputs; i++) {
            const hr_input *in = &weight()->inputs[i];
            int64_t stride = row_bytes(in, columns);
            for (int64_t r = begin; r < end && !direct(in); r++) {
                int64_t row = rows ? rows[first + r] : first + r;
                prepare_row(in, args->x + row * args->ldx, columns, scratch, form + r * stride);
            }
            form += count * stride;
        }
    }
    Rows inputs(int input, int64_t begin, int64_t end) const {
        const char *form = prepared;
        for (int i = 0; i < input; i++) form += count * row_bytes(&weight()->inputs[i], columns);
        const hr_input *in = &weight()->inputs[input];
        int64_t stride = row_bytes(in, columns);
        if (direct(in)) {
            form = (const char *)(args->x + first * args->ldx);
            stride = (int64_t)args->ldx * 4;
        }
        return {form + begin * stride, stride, end - begin};
    }
    Place place(int64_t panel) const {
        const hr_part *part = weight()->parts;
        for (; panel >= (part->rows + 15) / 16; part++) panel -= (part->rows + 15) / 16;
        int64_t rest = part->rows - panel * 16;
        return {part, panel, part->column + panel * 16, rest < 16 ? rest : 16};
    }
    const float *bias(const Place &at) const { return weight()->bias ? weight()->bias + at.column : nullptr; }
    // Rows [begin, end) of this pass times a panel.
    void product(const Place &at, int64_t begin, int64_t end, const Out &out) const {
        panel_product(at.part, at.panel, columns, inputs(at.part->input, begin, end), out, scratch);
    }
};

// Few rows: no phase before the products if the inputs are small, and one run of panels per part.
template <class Work> void run_few(LinearRun &run, int64_t taken, const Work &work) {
    int64_t begin, end;
    if (run.count * run.columns <= RUN_ALONE && taken + run.bytes * run.count <= run.ctx->scratch_bytes) {
        run.prepared = run.ctx->scratch + taken;
        run.prepare(0, run.count);
    } else if (run.ctx->phase == 0) {
        hr_share(run.ctx, run.count, 1, &begin, &end);
        run.prepare(begin, end);
        return hr_again(run.ctx);
    }
    hr_share(run.ctx, work.units(run), 1, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) work(run, unit, 0, run.count);
}

// A part multiplies the blocks of rows that it prepared with every panel, then the remaining blocks of other parts.
template <class Work> void run_blocks(const LinearRun &run, int64_t part, const Work &work) {
    int64_t begin, end, units = work.units(run);
    hr_share_of(run.ctx, part, run.count, 1, &begin, &end);
    int64_t rows = end - begin, blocks = (rows + RUN_BLOCK - 1) / RUN_BLOCK;
    for (int64_t i = hr_next_of(run.ctx, part); i < blocks * units; i = hr_next_of(run.ctx, part)) {
        int64_t block = i / units;
        work(run, i % units, begin + rows * block / blocks, begin + rows * (block + 1) / blocks);
    }
}

// Many rows: two phases per pass of as many rows as fit.
template <class Work> void run_many(LinearRun &run, int64_t total, int64_t fit, const Work &work) {
    run.first = run.ctx->phase / 2 * fit;
    run.count = total - run.first < fit ? total - run.first : fit;
    if (run.ctx->phase % 2 == 0) {
        int64_t begin, end;
        hr_share(run.ctx, run.count, 1, &begin, &end);
        run.prepare(begin, end);
        return hr_again(run.ctx);
    }
    for (int64_t i = 0; i < run.ctx->parts; i++) run_blocks(run, (run.ctx->part + i) % run.ctx->parts, work);
    if (run.first + run.count < total) hr_again(run.ctx);
}

// work(run, unit, begin, end) for each of work.units(run) and every row, x[rows ? rows[i] : i]; Work::ROOM floats are
// `run.room`.
template <class Work> void run_linear(const hr_linear_args *args, const int32_t *rows, hr_ctx *ctx, const Work &work) {
    const hr_packed *w = args->weight;
    int64_t total = hr_size(ctx, args->m), floats = panel_scratch(w->columns);
    float *scratch = (float *)ctx->scratch;
    LinearRun run = {args, rows, ctx, w->columns, 0, 0, scratch, scratch + floats, ctx->shared, 0, total};
    for (int i = 0; i < w->num_inputs; i++) run.bytes += row_bytes(&w->inputs[i], w->columns);
    for (int i = 0; i < w->num_parts; i++) run.panels += (w->parts[i].rows + 15) / 16;
    int64_t fit = ctx->shared_bytes / run.bytes, taken = (floats + Work::ROOM) * 4;
    if (total == 0) return;
    if (fit < 1 || taken > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    fit = fit < RUN_MOST ? fit : RUN_MOST;
    if (total <= RUN_FEW && total <= fit) run_few(run, taken, work);
    else run_many(run, total, fit, work);
}

}  // namespace
#endif
