// Linear: rows are prepared once for all panels, work is dealt to threads, and each panel is read once for a block of rows.
#include "cpu_run.h"

#include "cpu_panel.h"

namespace {

constexpr int64_t FEW_ROWS = 64;           // up to here a product is bound by memory: every thread streams one run of panels
constexpr int64_t ALONE = 1 << 13;         // inputs that each thread prepares for itself rather than wait for others
constexpr int64_t MOST_ROWS = 1024;        // rows that are prepared at a time
constexpr int64_t BLOCK = 128;             // rows of a unit of work

struct Call {
    const hr_linear_args *args;
    const hr_packed *weight;
    const int32_t *rows;
    float soft_cap;
    hr_ctx *ctx;
    int64_t columns, panels, bytes;  // bytes: of one row in all its prepared forms
    char *prepared;
    float *scratch;
    int64_t first, count;  // rows of this pass

    bool direct(const hr_input *in) const {
        return in->arith == HR_ARITH_F32 && in->kind == HR_INPUT_NONE && !in->order && !rows;
    }
};

int64_t all_row_bytes(const hr_packed *w) {
    int64_t bytes = 0;
    for (int i = 0; i < w->num_inputs; i++) bytes += row_bytes(&w->inputs[i], w->columns);
    return bytes;
}

void prepare(const Call &c, int64_t begin, int64_t end) {
    char *form = c.prepared;
    for (int i = 0; i < c.weight->num_inputs; i++) {
        const hr_input *in = &c.weight->inputs[i];
        int64_t bytes = row_bytes(in, c.columns);
        for (int64_t r = begin; r < end && !c.direct(in); r++) {
            int64_t row = c.rows ? c.rows[c.first + r] : c.first + r;
            prepare_row(in, c.args->x + row * c.args->ldx, c.columns, c.scratch, form + r * bytes);
        }
        form += c.count * bytes;
    }
}

Rows rows_of(const Call &c, int input, int64_t begin, int64_t count) {
    const char *form = c.prepared;
    for (int i = 0; i < input; i++) form += c.count * row_bytes(&c.weight->inputs[i], c.columns);
    const hr_input *in = &c.weight->inputs[input];
    int64_t stride = row_bytes(in, c.columns);
    if (c.direct(in)) {
        form = (const char *)(c.args->x + c.first * c.args->ldx);
        stride = (int64_t)c.args->ldx * 4;
    }
    return {form + begin * stride, stride, count};
}

void cap(const Out &out, int64_t rows, float soft_cap) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < out.rows; i += W) {
            float *y = out.y + r * out.stride + i;
            vstore_n(y, vset(soft_cap) * vtanh(vload_n(y, out.rows - i) / vset(soft_cap)), out.rows - i);
        }
}

void one_panel(const Call &c, int64_t panel, int64_t begin, int64_t end) {
    const hr_part *part = c.weight->parts;
    for (; panel >= (part->rows + 15) / 16; part++) panel -= (part->rows + 15) / 16;
    int64_t column = part->column + panel * 16, rest = part->rows - panel * 16;
    Out out = {c.args->y + (c.first + begin) * c.args->ldy + column, c.args->ldy, rest < 16 ? rest : 16,
               c.weight->bias ? c.weight->bias + column : nullptr};
    panel_product(part, panel, c.columns, rows_of(c, part->input, begin, end - begin), out, c.scratch);
    if (c.soft_cap != 0.0f) cap(out, end - begin, c.soft_cap);
}

// Few rows: no phase before the products where the inputs are small, and a run of panels a part.
void run_few(Call &c) {
    int64_t begin, end;
    if (c.count * c.columns <= ALONE && c.bytes * c.count + panel_scratch(c.columns) * 4 <= c.ctx->scratch_bytes) {
        c.prepared = c.ctx->scratch + panel_scratch(c.columns) * 4;
        prepare(c, 0, c.count);
    } else if (c.ctx->phase == 0) {
        hr_share(c.ctx, c.count, 1, &begin, &end);
        prepare(c, begin, end);
        return hr_again(c.ctx);
    }
    hr_share(c.ctx, c.panels, 1, &begin, &end);
    for (int64_t p = begin; p < end; p++) one_panel(c, p, 0, c.count);
}

// Many rows: a part takes blocks of the rows that it prepared, against every panel, then what others have left of theirs.
void run_blocks(const Call &c, int64_t part) {
    int64_t begin, end;
    hr_share_of(c.ctx, part, c.count, 1, &begin, &end);
    int64_t blocks = (end - begin + BLOCK - 1) / BLOCK, rows = end - begin;
    for (int64_t unit = hr_next_of(c.ctx, part); unit < blocks * c.panels; unit = hr_next_of(c.ctx, part)) {
        int64_t block = unit / c.panels;
        one_panel(c, unit % c.panels, begin + rows * block / blocks, begin + rows * (block + 1) / blocks);
    }
}

// Two phases for so many rows as fit.
void run_many(Call &c, int64_t total, int64_t fit) {
    c.first = c.ctx->phase / 2 * fit;
    c.count = total - c.first < fit ? total - c.first : fit;
    if (c.ctx->phase % 2 == 0) {
        int64_t begin, end;
        hr_share(c.ctx, c.count, 1, &begin, &end);
        prepare(c, begin, end);
        return hr_again(c.ctx);
    }
    for (int64_t i = 0; i < c.ctx->parts; i++) run_blocks(c, (c.ctx->part + i) % c.ctx->parts);
    if (c.first + c.count < total) hr_again(c.ctx);
}

}  // namespace

void hr_linear_run(const hr_linear_args *args, const int32_t *rows, float soft_cap, hr_ctx *ctx) {
    const hr_packed *w = args->weight;
    int64_t total = hr_size(ctx, args->m);
    Call c = {args, w, rows, soft_cap, ctx, w->columns, 0, all_row_bytes(w), ctx->shared, (float *)ctx->scratch, 0, total};
    for (int i = 0; i < w->num_parts; i++) c.panels += (w->parts[i].rows + 15) / 16;
    int64_t fit = ctx->shared_bytes / c.bytes, need = panel_scratch(c.columns) * 4;
    if (total == 0) return;
    if (fit < 1 || need > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    fit = fit < MOST_ROWS ? fit : MOST_ROWS;
    if (total <= FEW_ROWS && total <= fit) run_few(c);
    else run_many(c, total, fit);
}

HR_KERNEL(linear) { hr_linear_run((const hr_linear_args *)args, nullptr, 0.0f, ctx); }
