// Causal attention over the paged cache, for decode and chunked prefill alike.
//
// One algorithm a (query, head) row, whatever shares the step: keys in segments of 256 aligned to absolute positions. Within a
// segment scores are summed over d in order, their maximum is taken, and the values are summed over keys in order; segments
// are joined in ascending order as in an online softmax (arXiv:2205.14135). What a row doesn't see adds exact zeros. So the bits
// don't depend on the tile of rows, on the chunk, or on whether segments were computed by one thread or by several.
#include "cpu_tile.h"

namespace {

struct Unit {
    int64_t seq, head, tile;  // head counts groups of query heads that share a unit
    int64_t first, last;      // segments [first, last)
    bool whole;               // all that the rows see: the result can be written
    int64_t partial;          // else where this unit's first segment's state goes
};

// The units of a step, the same list in every thread. Sequences of one tile may be split over segments.
struct Plan {
    const Args *a;
    const hr_ctx *ctx;
    int64_t heads, tile_tokens, grain, slots;
    int64_t seq = -1, base = 0, units = 0, parts = 1, tiles = 0, slot = 0;

    int64_t tokens(int64_t s) const { return a->query_start[s + 1] - a->query_start[s]; }
    int64_t first_segment(int64_t s) const {
        int64_t p = a->context_lens[s] - tokens(s);
        return a->window > 0 && p - a->window + 1 > 0 ? (p - a->window + 1) / SEGMENT : 0;
    }
    int64_t segments(int64_t s) const { return (a->context_lens[s] + SEGMENT - 1) / SEGMENT - first_segment(s); }
    int64_t seqs() const { return ctx->sizes[HR_S]; }

    Plan(const Args *args, const hr_ctx *c) : a(args), ctx(c) {
        heads = a->kv.heads * a->subs;
        tile_tokens = TILE_ROWS / a->sub_rows > 1 ? TILE_ROWS / a->sub_rows : 1;
        int64_t total = 0;
        for (int64_t s = 0; s < seqs(); s++) total += segments(s) * heads * ((tokens(s) + tile_tokens - 1) / tile_tokens);
        grain = total / (4 * c->nthreads);
        if (grain < 1) grain = 1;
        if (c->nthreads == 1) grain = 1 << 30;
        slots = c->shared_bytes / (a->state * 4);
    }
    // Slots of partial states that sequence s takes: one a segment, head and row.
    int64_t wanted(int64_t s) const {
        bool split = tokens(s) > 0 && tokens(s) <= tile_tokens && segments(s) > grain;
        return split ? segments(s) * heads * tokens(s) * a->sub_rows : 0;
    }
    // Move to the sequence of unit `index`, which only grows; false behind the last.
    bool seek(int64_t index) {
        while (seq < 0 || index >= base + units) {
            base += units;
            if (parts > 1) slot += wanted(seq);
            if (++seq >= seqs()) return false;
            tiles = (tokens(seq) + tile_tokens - 1) / tile_tokens;
            int64_t need = wanted(seq);
            parts = need && slot + need <= slots ? (segments(seq) + grain - 1) / grain : 1;
            units = tiles * heads * parts;
        }
        return true;
    }
    Unit unit(int64_t index) const {
        int64_t i = index - base, part = i / heads % parts, lo = first_segment(seq), n = segments(seq);
        Unit u = {seq, i % heads, tiles - 1 - i / heads / parts, lo, lo + n, parts == 1, 0};
        if (parts > 1) {
            u.first = lo + part * grain;
            u.last = u.first + grain < lo + n ? u.first + grain : lo + n;
            u.partial = slot + (u.head * n + u.first - lo) * tokens(seq) * a->sub_rows;
        }
        return u;
    }
};

void run(const Args *a, hr_ctx *ctx, const Unit &u, int64_t tile_tokens) {
    Tile t(a, ctx, u.seq, u.head, u.tile, tile_tokens);
    int64_t last = t.last_position() / SEGMENT + 1;
    if (u.whole) {
        t.reset();
        for (int64_t s = t.first_segment(); s < last; s++) t.segment(s);
        for (int64_t r = 0; r < t.rows; r++) t.write(r);
        return;
    }
    int64_t stride = t.tokens * a->sub_rows;
    for (int64_t s = u.first; s < u.last; s++) {
        t.reset();
        t.segment(s);
        float *to = (float *)ctx->shared + (u.partial + (s - u.first) * stride) * a->state;
        for (int64_t r = 0; r < t.rows; r++) t.save(r, to + r * a->state);
    }
}

// Join the partial states of sequence `p.seq`, rows shared out over the team.
void join(const Plan &p, hr_ctx *ctx) {
    const Args *a = p.a;
    int64_t n = p.segments(p.seq), rows = p.tokens(p.seq) * a->sub_rows;
    for (int64_t i = ctx->tid; i < p.heads * rows; i += ctx->nthreads) {
        int64_t head = i / rows, r = i % rows;
        Tile t(a, ctx, p.seq, head, 0, p.tile_tokens);
        if (r >= t.rows) continue;
        t.reset();
        for (int64_t s = 0; s < n; s++) {
            int64_t at = p.slot + (head * n + s) * rows + r;
            t.add(r, (const float *)ctx->shared + at * a->state);
        }
        t.write(r);
    }
}

}  // namespace

HR_KERNEL(attention) {
    const auto *a = (const Args *)args;
    if (Scratch(a, nullptr).bytes > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    Plan work(a, ctx);
    for (int64_t i = hr_next(ctx); work.seek(i); i = hr_next(ctx)) run(a, ctx, work.unit(i), work.tile_tokens);
    Plan rest(a, ctx);
    bool any = false;
    for (int64_t i = 0; rest.seek(i); i = rest.base + rest.units) {
        if (rest.parts == 1) continue;
        if (!any) hr_barrier(ctx);
        any = true;
        join(rest, ctx);
    }
}
