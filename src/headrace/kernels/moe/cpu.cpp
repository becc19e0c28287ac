// Mixture of experts: tokens are grouped by expert, and each expert's panels are read once for all that chose it. Below,
// an expert's number counts from the first one that is held.
#include "cpu.h"

#include "../gated_activation/cpu_activate.h"
#include "../linear/cpu_panel.h"
#include "cpu_route.h"

namespace {

constexpr int64_t FEW_PAIRS = 64;          // up to here every thread streams one run of panels
constexpr int64_t MOST_PAIRS = 1 << 14;    // pairs prepared at a time; an expert split by this limit is read again
constexpr int64_t BLOCK = 128;             // rows per unit of work
constexpr int64_t ALONE = 4;               // tokens that one thread routes while the others wait

struct Call {
    const hr_moe_args *a;
    int64_t held;              // experts
    hr_ctx *ctx;
    int64_t begin, end;        // pairs of this pass, by their index in `order`
    bool dealt;
    float *scratch, *gate, *up;
};

// One of the two products: `each` parts per expert, inputs prepared in `forms` forms.
struct Product {
    const hr_packed *weight;
    int64_t each, forms, slot;  // slot: the largest size of a prepared row, in bytes

    const hr_part *part(int64_t expert, int64_t i) const { return weight->parts + expert * each + i; }
    const hr_input *input(int64_t expert, int64_t i) const { return weight->inputs + part(expert, i)->input; }
    bool own(int64_t expert, int64_t i) const { return i == 0 || input(expert, i) != input(expert, 0); }
};

Product product_of(const hr_packed *w, int64_t each, int64_t experts) {
    Product p = {w, each, 1, 0};
    for (int i = 0; i < w->num_inputs; i++) {
        int64_t bytes = row_bytes(&w->inputs[i], w->columns);
        p.slot = bytes > p.slot ? bytes : p.slot;
    }
    for (int64_t e = 0; e < experts && each == 2 && w->num_inputs > 1; e++)
        if (p.own(e, 1)) p.forms = 2;
    return p;
}

// An expert's pairs of this pass, and the place of its prepared rows.
struct Group {
    int64_t expert, begin, end;
    int64_t rows() const { return end - begin; }
};

Group group_of(const Call &c, int64_t expert) {
    int64_t begin = c.a->first[expert], end = c.a->first[expert + 1];
    return {expert, begin > c.begin ? begin : c.begin, end < c.end ? end : c.end};
}

Rows prepared_rows(const Call &c, const Product &p, const Group &g, int64_t i, int64_t row, int64_t count) {
    i = p.own(g.expert, i) ? i : 0;
    char *base = c.ctx->shared + (i * (c.end - c.begin) + g.begin - c.begin) * p.slot;
    int64_t stride = row_bytes(p.input(g.expert, i), p.weight->columns);
    return {base + row * stride, stride, count};
}

// `source(place)` is the input row of a pair.
template <class Source> void prepare(const Call &c, const Product &p, Source source) {
    int64_t begin, end;
    hr_share(c.ctx, c.end - c.begin, 1, &begin, &end);
    begin += c.begin;
    end += c.begin;
    for (int64_t e = 0; e < c.held && begin < end; e++) {
        Group g = group_of(c, e);
        for (; begin < end && begin < g.end; begin++)
            for (int64_t i = 0; i < p.each; i++) {
                if (!p.own(e, i)) continue;
                char *row = (char *)prepared_rows(c, p, g, i, begin - g.begin, 1).x;
                prepare_row(p.input(e, i), source(begin), p.weight->columns, c.scratch, row);
            }
    }
}

// work(group, panel, first row, rows) for every panel of every expert that has pairs. If units are distributed
// dynamically, any thread may get any of them.
template <class Work> void for_panels(const Call &c, int64_t panels, Work work) {
    int64_t unit, stop, before = 0, total = 0;
    auto blocks_of = [](const Group &g) { return g.rows() > 0 ? (g.rows() + BLOCK - 1) / BLOCK : 0; };
    for (int64_t e = 0; e < c.held; e++) total += panels * blocks_of(group_of(c, e));
    hr_share(c.ctx, total, 1, &unit, &stop);
    if (c.dealt) unit = hr_next(c.ctx), stop = total;
    for (int64_t e = 0; e < c.held; e++) {
        Group g = group_of(c, e);
        int64_t blocks = blocks_of(g), units = panels * blocks;
        while (unit < stop && unit < before + units) {
            int64_t block = (unit - before) % blocks, row = g.rows() * block / blocks;
            work(g, (unit - before) / blocks, row, g.rows() * (block + 1) / blocks - row);
            unit = c.dealt ? hr_next(c.ctx) : unit + 1;
        }
        before += units;
    }
}

int64_t rows_of(const hr_part *part, int64_t panel) {
    int64_t rest = part->rows - panel * 16;
    return rest < 16 ? rest : 16;
}

const float *bias_of(const hr_packed *w, const hr_part *part, int64_t panel) {
    return w->bias ? w->bias + part->column + panel * 16 : nullptr;
}

void prepare_gate_up(const Call &c, const Product &p) {
    const hr_moe_args *a = c.a;
    prepare(c, p, [=](int64_t place) { return a->x + a->order[place] / a->top_k * (int64_t)a->columns; });
}

void gate_up(const Call &c, const Product &p) {
    const hr_moe_args *a = c.a;
    for_panels(c, (a->width + 15) / 16, [&](const Group &g, int64_t panel, int64_t row, int64_t rows) {
        int64_t columns = rows_of(p.part(g.expert, 0), panel);
        for (int64_t i = 0; i < 2; i++) {
            const hr_part *part = p.part(g.expert, i);
            Out out = {i ? c.up : c.gate, 16, columns, bias_of(p.weight, part, panel)};
            panel_product(part, panel, a->columns, prepared_rows(c, p, g, i, row, rows), out, c.scratch);
        }
        float *h = a->hidden + (g.begin + row) * a->width + panel * 16;
        activate_block(a->kind, c.gate, c.up, rows, columns, h, a->width);
    });
}

void prepare_down(const Call &c, const Product &p) {
    const hr_moe_args *a = c.a;
    prepare(c, p, [=](int64_t place) { return a->hidden + place * a->width; });
}

void down(const Call &c, const Product &p) {
    const hr_moe_args *a = c.a;
    for_panels(c, (a->columns + 15) / 16, [&](const Group &g, int64_t panel, int64_t row, int64_t rows) {
        const hr_part *part = p.part(g.expert, 0);
        float *y = a->out + (g.begin + row) * a->columns + panel * 16;
        Out out = {y, a->columns, rows_of(part, panel), bias_of(p.weight, part, panel)};
        panel_product(part, panel, a->width, prepared_rows(c, p, g, 0, row, rows), out, c.scratch);
    });
}

// The sum of each token, over its experts in the order of their choice. `row(pair)` is what the pair's expert gave.
template <class Row> void combine(const hr_moe_args *a, hr_ctx *ctx, int64_t tokens, Row row) {
    int64_t n = a->columns, k = a->top_k, begin, end;
    hr_share(ctx, tokens * n, 64, &begin, &end);
    for (int64_t at = begin; at < end;) {
        int64_t t = at / n, first = at % n, stop = n - first < end - at ? n : first + (end - at);
        for (int64_t i = first; i < stop; i += W) {
            vf total = vset(0.0f);
            for (int64_t r = 0; r < k; r++) {
                const float *out = row(t * k + r) + i;
                total = total + vload_n(out, stop - i) * vset(a->shares[t * k + r]);
            }
            vstore_n(a->y + t * n + i, total, stop - i);
        }
        at += stop - first;
    }
}

// What each pair's expert gave, in the order of the pairs; zeros for an expert that is not held.
void spread(const Call &c, int64_t pairs) {
    const hr_moe_args *a = c.a;
    int64_t n = a->columns, begin, end;
    hr_share(c.ctx, pairs, 1, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        if (a->place[p] < 0) memset(a->y + p * n, 0, (size_t)n * 4);
        else memcpy(a->y + p * n, a->out + a->place[p] * n, (size_t)n * 4);
    }
}

// The phases that choose experts: one of all parts if there are many tokens, then one that sorts.
void route(const Call &c, int64_t tokens, int64_t first) {
    bool many = tokens > ALONE, sorts = c.ctx->phase == many;
    int64_t begin = 0, end = c.ctx->part == 0 && !many ? tokens : 0;
    if (!sorts) hr_share(c.ctx, tokens, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) route_token(c.a, t, c.ctx->scratch);
    if (sorts && c.ctx->part == 0) sort_pairs(c.a, tokens * c.a->top_k, first, c.held);
}

// What the experts [expert, expert + held) give, to `out`, then finish(call, tokens).
template <class Finish> void run(const hr_moe_args *a, hr_ctx *ctx, int64_t expert, int64_t held, Finish finish) {
    int64_t tokens = hr_size(ctx, a->m), pairs = tokens * a->top_k;
    Product first = product_of(a->gate_up, 2, held), second = product_of(a->down, 1, held);
    int64_t bytes = first.slot * first.forms > second.slot ? first.slot * first.forms : second.slot;
    int64_t fit = ctx->shared_bytes / bytes, floats = panel_scratch(a->columns > a->width ? a->columns : a->width);
    if (tokens == 0) return;
    if (fit < 1 || (floats + 2 * BLOCK * 16) * 4 > ctx->scratch_bytes || route_scratch(a) > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    float *scratch = (float *)ctx->scratch;
    Call c = {a, held, ctx, 0, 0, pairs > FEW_PAIRS, scratch, scratch + floats, scratch + floats + BLOCK * 16};
    fit = fit < MOST_PAIRS ? fit : MOST_PAIRS;
    // The phases of the choice, then four per pass, then the sums.
    int64_t at = ctx->phase - (tokens > ALONE ? 2 : 1);
    if (at >= 0) pairs = a->first[held];
    c.begin = at / 4 * fit;
    c.end = c.begin + fit < pairs ? c.begin + fit : pairs;
    if (at >= 0 && c.begin >= pairs) return finish(c, tokens);
    hr_again(ctx);
    if (at < 0) return route(c, tokens, expert);
    switch (at % 4) {
    case 0: return prepare_gate_up(c, first);
    case 1: return gate_up(c, first);
    case 2: return prepare_down(c, second);
    case 3: return down(c, second);
    }
}

}  // namespace

HR_KERNEL(moe) {
    const auto *a = (const hr_moe_args *)args;
    run(a, ctx, 0, a->experts, [=](const Call &c, int64_t tokens) {
        combine(a, c.ctx, tokens, [=](int64_t pair) { return a->out + a->place[pair] * (int64_t)a->columns; });
    });
}

HR_KERNEL(own_experts) {
    const auto *e = (const hr_experts_args *)args;
    run(&e->moe, ctx, e->begin, e->held, [](const Call &c, int64_t tokens) { spread(c, tokens * c.a->top_k); });
}

// Two phases: the choice of each token, then the sums.
HR_KERNEL(mix_experts) {
    const auto *e = (const hr_experts_args *)args;
    const hr_moe_args *a = &e->moe;
    int64_t tokens = hr_size(ctx, a->m), n = a->columns, ranks = e->ranks;
    if (tokens == 0) return;
    if (route_scratch(a) > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    if (ctx->phase) {
        return combine(a, ctx, tokens, [=](int64_t pair) {
            int64_t owner = ((a->chosen[pair] + 1) * ranks - 1) / a->experts;  // `routing.expert_range`
            return a->x + (pair * ranks + owner) * n;
        });
    }
    hr_again(ctx);
    int64_t begin, end;
    hr_share(ctx, tokens, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) route_token(a, t, ctx->scratch);
}
