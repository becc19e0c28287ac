// Causal attention over the paged cache, for decode and chunked prefill.
//
// Every (query, head) row has one algorithm, independently of the other rows of the step: keys are processed in
// segments of 256 aligned to absolute positions. Within a segment, scores are summed over d in order, their maximum is
// computed, and the values are summed over keys in order; segments are joined in ascending order as in an online
// softmax (arXiv:2205.14135). Masked keys add exact zeros. So the bits don't depend on the tile of rows, on the chunk,
// or on whether one thread or several computed the segments.
#include "cpu_tile.h"

namespace {

struct Unit {
    int64_t seq, head, tile;  // head: index of a group of query heads that share a unit
    int64_t first, last;      // segments [first, last)
    bool whole;               // covers all keys that the rows see: the result can be written
    int64_t partial;          // otherwise: slot for the state of the first segment (in a bundle, of its first member)
    int64_t members;          // sequences that share the unit's keys; 1 outside a bundle
};

// The units of a step, the same list in every thread. Sequences of one tile may be split over segments.
//
// Adjacent sequences of one token each whose block tables begin with the same blocks form a bundle: the segments in
// those blocks are read once for all of them. Each member's states are joined in the order of segments, as they are
// without a bundle.
struct Plan {
    const Args *a;
    const hr_ctx *ctx;
    int64_t heads, tile_tokens, grain, slots;
    int64_t seq = 0, members = 0, shared = 0;  // the current bundle, and the segments that all its members see
    int64_t base = 0, units = 0, common = 0, parts = 1, tiles = 0, slot = 0, taken = 0;

    int64_t tokens(int64_t s) const { return Extent(a, ctx, s).count; }
    int64_t first_segment(int64_t s) const {
        Extent e(a, ctx, s);
        int64_t p = e.context - e.count;
        return a->window > 0 && p - a->window + 1 > 0 ? (p - a->window + 1) / SEGMENT : 0;
    }
    int64_t context(int64_t s) const { return Extent(a, ctx, s).context; }
    int64_t segments(int64_t s) const { return (context(s) + SEGMENT - 1) / SEGMENT - first_segment(s); }
    int64_t seqs() const { return ctx->sizes[HR_S]; }
    // Slots for partial states of sequence s: one per segment, head and row.
    int64_t states(int64_t s) const { return segments(s) * heads * tokens(s) * a->sub_rows; }

    Plan(const Args *args, const hr_ctx *c) : a(args), ctx(c) {
        heads = a->kv.heads * a->subs;
        tile_tokens = TILE_ROWS / a->sub_rows > 1 ? TILE_ROWS / a->sub_rows : 1;
        shrink_tiles();
        int64_t total = work();
        grain = total / (4 * c->parts);
        if (grain < 1) grain = 1;
        if (c->parts == 1) grain = 1 << 30;
        slots = c->shared_bytes / (a->state * 4);
    }
    // Move to the sequence (or bundle) of unit `index`, which must not decrease; false after the last unit.
    bool seek(int64_t index) {
        while (index >= base + units) {
            base += units;
            slot += taken;
            seq += members;
            if (seq >= seqs()) return false;
            gather();
            if (members > 1) {
                tiles = (members + tile_tokens - 1) / tile_tokens;
                units = common = heads * tiles * shared;
                for (int64_t j = 0; j < members; j++) units += heads * own_parts(seq + j);
                continue;
            }
            tiles = (tokens(seq) + tile_tokens - 1) / tile_tokens;
            bool split = tokens(seq) > 0 && tokens(seq) <= tile_tokens && segments(seq) > grain;
            taken = split && slot + states(seq) <= slots ? states(seq) : 0;
            parts = taken ? (segments(seq) + grain - 1) / grain : 1;
            units = tiles * heads * parts;
        }
        return true;
    }
    Unit unit(int64_t index) const {
        int64_t i = index - base, head = i % heads, lo = first_segment(seq), n = segments(seq);
        if (members > 1) return i < common ? shared_unit(i) : own_unit(i - common);
        Unit u = {seq, head, tiles - 1 - i / heads / parts, lo, lo + n, parts == 1, 0, 1};
        if (parts > 1) {
            u.first = lo + i / heads % parts * grain;
            u.last = u.first + grain < lo + n ? u.first + grain : lo + n;
            u.partial = slot + (head * n + u.first - lo) * tokens(seq) * a->sub_rows;
        }
        return u;
    }

private:
    // Tiles times segments of the step.
    int64_t work() const {
        int64_t total = 0;
        for (int64_t s = 0; s < seqs(); s++)
            total += segments(s) * heads * ((tokens(s) + tile_tokens - 1) / tile_tokens);
        return total;
    }
    // A few tokens of one sequence are divided among the threads, so that tiles times heads is a multiple of their
    // number: the parts are even, and no states have to be joined. All threads read all keys, so this is for keys that
    // stay in a cache.
    void shrink_tiles() {
        int64_t most = 0, all = 0, threads = ctx->parts, divisor = threads;
        for (int64_t s = 0; s < seqs(); s++) {
            most = tokens(s) > most ? tokens(s) : most;
            all += heads * ((tokens(s) + tile_tokens - 1) / tile_tokens);
        }
        if (most < 2 || all >= 4 * threads || heads * most < 2 * threads || work() >= 16 * threads) return;
        while (heads % divisor || threads % divisor) divisor--;
        int64_t each = threads / divisor, small = (most + each - 1) / each;
        if (small < tile_tokens) tile_tokens = small;
    }
    // Number of complete segments, at most `most`, in the blocks that the tables of s and t have in common.
    int64_t alike(int64_t s, int64_t t, int64_t most) const {
        int64_t width = ctx->sizes[HR_TABLE], whole = context(t) / SEGMENT, n = 0;
        if (whole < most) most = whole;
        const int32_t *x = a->block_tables + s * width, *y = a->block_tables + t * width;
        while (n * a->kv.block_size < most * SEGMENT && x[n] == y[n]) n++;
        n = n * a->kv.block_size / SEGMENT;
        return n < most ? n : most;
    }
    // The bundle that begins at `seq`: sequences are added while the shared segments don't shrink to less than half.
    void gather() {
        members = 1, shared = taken = 0;
        if (a->window > 0 || tokens(seq) != 1) return;
        int64_t need = states(seq), most = context(seq) / SEGMENT;
        for (int64_t t = seq + 1; most > 0 && t < seqs() && tokens(t) == 1; t++) {
            int64_t n = alike(seq, t, most);
            need += states(t);
            if (n < 1 || 2 * n < shared || slot + need > slots) return;
            most = shared = n;
            taken = need;
            members++;
        }
    }
    int64_t own_parts(int64_t s) const { return (segments(s) - shared + grain - 1) / grain; }
    Unit shared_unit(int64_t i) const {
        int64_t head = i % heads, tile = i / heads % tiles, s = i / heads / tiles, from = tile * tile_tokens, at = slot;
        int64_t many = members - from < tile_tokens ? members - from : tile_tokens;
        for (int64_t j = 0; j < from; j++) at += states(seq + j);
        return {seq + from, head, 0, s, s + 1, false, at, many};
    }
    Unit own_unit(int64_t i) const {
        int64_t s = seq, at = slot;
        for (; i >= heads * own_parts(s); s++) i -= heads * own_parts(s), at += states(s);
        int64_t n = segments(s), first = shared + i / heads * grain, last = first + grain < n ? first + grain : n;
        return {s, i % heads, 0, first, last, false, at + (i % heads * n + first) * a->sub_rows, 1};
    }
};

void run_shared(const Plan &p, hr_ctx *ctx, const Unit &u) {
    Tile t(p.a, ctx, u.seq, u.head, u.members);
    t.reset();
    t.segment(u.first);
    int64_t at = u.partial;
    for (int64_t j = 0; j < u.members; j++) {
        int64_t from = at + (u.head * p.segments(u.seq + j) + u.first) * p.a->sub_rows;
        float *to = (float *)ctx->shared + from * p.a->state;
        for (int64_t h = 0; h < t.heads; h++) t.save(j * t.heads + h, to + h * p.a->state);
        at += p.states(u.seq + j);
    }
}

void run(const Plan &p, hr_ctx *ctx, const Unit &u) {
    if (u.members > 1) return run_shared(p, ctx, u);
    const Args *a = p.a;
    Tile t(a, ctx, u.seq, u.head, u.tile, p.tile_tokens);
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

// Join the partial states of sequence s, which begin at `slot`; the rows are distributed over the team.
void join(const Plan &p, hr_ctx *ctx, int64_t s, int64_t slot) {
    const Args *a = p.a;
    int64_t n = p.segments(s), rows = p.tokens(s) * a->sub_rows;
    for (int64_t i = (ctx->part + s) % ctx->parts; i < p.heads * rows; i += ctx->parts) {
        int64_t head = i / rows, at = i % rows;
        Tile t(a, ctx, s, head);
        if (at >= p.tokens(s) * t.heads) continue;
        int64_t r = at % t.heads;
        t.select(at / t.heads);
        t.reset(r);
        const float *states = (const float *)ctx->shared;
        for (int64_t k = 0; k < n; k++) t.add(r, states + (slot + (head * n + k) * rows + at) * a->state);
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
    if (ctx->phase == 0) {
        Plan work(a, ctx);
        for (int64_t i = hr_next(ctx); work.seek(i); i = hr_next(ctx)) run(work, ctx, work.unit(i));
    }
    Plan rest(a, ctx);
    for (int64_t i = 0; rest.seek(i); i = rest.base + rest.units) {
        if (!rest.taken) continue;
        if (ctx->phase == 0) return hr_again(ctx);
        int64_t slot = rest.slot;
        for (int64_t j = 0; j < rest.members; slot += rest.states(rest.seq + j++)) join(rest, ctx, rest.seq + j, slot);
    }
}
