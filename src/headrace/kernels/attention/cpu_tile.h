// A tile: the rows (token, query head) of one sequence that share a KV head, and their state while segments of keys are
// processed.
#ifndef HEADRACE_ATTENTION_TILE_H
#define HEADRACE_ATTENTION_TILE_H
#include "cpu_panel.h"

struct attention_args {
    const float *q;  // [T, Hq d]
    float *out;      // [T, Hq d]
    hr_kv kv;
    const int32_t *query_start, *context_lens, *block_tables;
    const float *sinks, *alibi;  // [Hq] or null
    int32_t q_heads;
    int32_t sub_rows, subs;  // query heads of a unit, and units of a KV head: sub_rows * subs >= Hq / Hk
    int32_t window;          // 0: none
    int32_t state;           // floats of a partial state: padded + 32
    float scale, soft_cap;   // soft_cap 0: none
};
HR_LAYOUT(attention_args, q, out, kv, query_start, context_lens, block_tables, sinks, alibi, q_heads, sub_rows, subs,
          window, state, scale, soft_cap);

namespace {

typedef attention_args Args;
constexpr int64_t SEGMENT = 256, GROUPS = SEGMENT / 16, TILE_ROWS = 48, BLOCK = 2 * MR, MAX_ROWS = TILE_ROWS + MR;
constexpr float NOTHING = -1e30f;  // the maximum of a row before its first key: finite, so that differences are finite

// The tokens of a sequence that the step computes: it may end before the last ones (see `place`), which then are not in
// the cache either.
struct Extent {
    int64_t begin, count, context;

    Extent(const Args *a, const hr_ctx *ctx, int64_t s) {
        int64_t end = a->query_start[s + 1], cut = end > ctx->sizes[HR_T] ? end - ctx->sizes[HR_T] : 0;
        begin = a->query_start[s];
        count = end - cut - begin;
        context = a->context_lens[s] - cut;
    }
};

struct Scratch {
    uint32_t *q, *p, *panels;
    float *s, *out;
    int64_t bytes;

    Scratch(const Args *a, char *base) {
        int64_t padded = a->kv.padded, at = 0;
        auto take = [&](int64_t words) {
            char *p = base + at;
            at += (words * 4 + 63) & ~(int64_t)63;
            return p;
        };
        q = (uint32_t *)take(MAX_ROWS * padded);
        out = (float *)take(MAX_ROWS * padded);
        s = (float *)take(MAX_ROWS * SEGMENT);
        p = (uint32_t *)take(MAX_ROWS * SEGMENT);
        panels = (uint32_t *)take(2 * SEGMENT * padded);
        bytes = at;
    }
};

struct Tile {
    const Args *a;
    const hr_kv *kv;
    bool pairs;
    Extent extent;  // of sequence seq
    int64_t seq, kv_head, head0, heads, tokens, padded, rows, steps, ldq, ldp;
    int32_t token[TILE_ROWS], place[TILE_ROWS];  // rows of q, and positions in their sequences, of the tile's tokens
    const int32_t *table;
    Scratch m;
    alignas(64) float peak[MAX_ROWS], now[MAX_ROWS], keep[MAX_ROWS], take[MAX_ROWS];  // now: the segment's own maximum
    vf sum[MAX_ROWS], top[MAX_ROWS];

    // Tokens of one sequence.
    Tile(const Args *args, hr_ctx *ctx, int64_t s, int64_t head, int64_t tile, int64_t tile_tokens)
        : Tile(args, ctx, s, head) {
        int64_t n = extent.count, from = tile * tile_tokens;
        tokens = n - from < tile_tokens ? n - from : tile_tokens;
        for (int64_t i = 0; i < tokens; i++) {
            token[i] = (int32_t)(extent.begin + from + i);
            place[i] = (int32_t)(extent.context - n + from + i);
        }
        load_queries();
    }
    // The tokens of `members` sequences of one token each, for segments in common blocks that all of them see
    // completely.
    Tile(const Args *args, hr_ctx *ctx, int64_t s, int64_t head, int64_t members) : Tile(args, ctx, s, head) {
        tokens = members;
        for (int64_t i = 0; i < tokens; i++) {
            token[i] = a->query_start[s + i];
            place[i] = (int32_t)Extent(a, ctx, s + i).context - 1;
        }
        load_queries();
    }

    // Only token i of the sequence, to join the states of its rows: its query isn't loaded.
    void select(int64_t i) {
        tokens = 1, rows = heads;
        token[0] = (int32_t)(extent.begin + i);
        place[0] = (int32_t)(extent.context - extent.count + i);
    }
    const float *query(int64_t r) const {
        return a->q + ((int64_t)token[r / heads] * a->q_heads + head0 + r % heads) * kv->dim;
    }
    int64_t position(int64_t r) const { return place[r / heads]; }
    int64_t start(int64_t r) const {
        int64_t p = position(r) - a->window + 1;
        return a->window > 0 && p > 0 ? p : 0;
    }
    int64_t last_position() const { return place[tokens - 1]; }
    int64_t first_segment() const { return start(0) / SEGMENT; }

    Tile(const Args *args, hr_ctx *ctx, int64_t s, int64_t head)
        : a(args), kv(&args->kv), pairs(panel_pairs(&args->kv)), extent(args, ctx, s), seq(s), m(args, ctx->scratch) {
        int64_t group = a->q_heads / kv->heads, sub = head % a->subs;
        kv_head = head / a->subs;
        head0 = kv_head * group + sub * a->sub_rows;
        heads = group - sub * a->sub_rows < a->sub_rows ? group - sub * a->sub_rows : a->sub_rows;
        padded = kv->padded;
        steps = pairs ? padded / 2 : padded;
        ldq = pairs && HR_DOT ? padded / 2 : padded;
        ldp = pairs && HR_DOT ? SEGMENT / 2 : SEGMENT;
        table = a->block_tables + s * ctx->sizes[HR_TABLE];
    }
    void load_queries() {
        rows = tokens * heads;
        for (int64_t r = 0; r < rows; r++) load_query(r);
    }
    void load_query(int64_t r) {
        const float *q = query(r);
        for (int64_t i = 0; i < padded; i += W) {
            vf x = vload_n(q + i, kv->dim - i);
#if HR_DOT
            if (pairs) {
                storeu((uint16_t *)(m.q + r * ldq) + i, (vh)_mm512_cvtneps_pbh((__m512)x));
                continue;
            }
#endif
            vstore((float *)(m.q + r * ldq) + i, x);
        }
    }
    void reset(int64_t r) {
        memset(m.out + r * padded, 0, (size_t)padded * 4);
        peak[r] = NOTHING, sum[r] = vf{};
    }
    void reset() {
        for (int64_t r = 0; r < rows; r++) reset(r);
    }

    // Process the keys at positions 256 s to 256 s + 255 for every row.
    void segment(int64_t s) {
        int64_t base = s * SEGMENT, end = last_position() + 1 - base, lo = start(0) - base;
        int64_t g0 = lo > 0 ? lo / 16 : 0, g1 = (end < SEGMENT ? end + 15 : SEGMENT) / 16, n = g1 - g0;
        const uint32_t *keys[GROUPS], *values[GROUPS];
        alignas(64) float key_scales[SEGMENT], value_scales[SEGMENT];
        bool scaled = kv->key_scales != nullptr;
        for (int64_t g = g0; g < g1; g++) fetch(base + 16 * g, g - g0, keys, values, key_scales, value_scales);
        bool stored = panel_stored(kv);
        bool extras = a->soft_cap != 0.0f || a->alibi || scaled;
        // If all rows see all keys and nothing is added to the scores, the products have already found the maxima.
        bool plain = !extras && base + 16 * g1 <= place[0] + 1 && start(rows - 1) <= base + 16 * g0;
        for (int64_t r = 0; r < rows; r++) top[r] = vset(-INFINITY);
        // Rows are processed in blocks whose scores stay in the L1 cache.
        for (int64_t begin = 0; begin < rows; begin += BLOCK) {
            int64_t end_row = rows - begin < BLOCK ? rows : begin + BLOCK;
            for (int64_t g = 0; g < n; g += NG) {
                int64_t some = n - g < NG ? n - g : NG;
                for (int64_t i = 0; stored && begin == 0 && i < some; i++) prefetch_panel(values[g + i]);
                for (int64_t i = g + NG; stored && begin == 0 && i < n && i < g + 2 * NG; i++) prefetch_panel(keys[i]);
                for (int64_t r = begin; r < end_row; r += MR) {
#define CALL(R) \
    pairs ? score_rows<HR_PAIRS, R>(m.q + r * ldq, ldq, steps, keys + g, some, m.s + r * SEGMENT + 16 * g, SEGMENT, \
                                    top + r)                                                                     \
          : score_rows<false, R>(m.q + r * ldq, ldq, steps, keys + g, some, m.s + r * SEGMENT + 16 * g, SEGMENT, top + r)
                    HR_BY_ROWS(end_row - r, CALL)
#undef CALL
                }
            }
            for (int64_t r = begin; r < end_row && !plain; r++)
                extras ? adjust<true>(r, base + 16 * g0, n, scaled ? key_scales : nullptr)
                       : adjust<false>(r, base + 16 * g0, n, nullptr);
            settle(begin, end_row, extras ? LOG2E : a->scale * LOG2E);
            for (int64_t r = begin; r < end_row; r++) {
                const float *vs = scaled ? value_scales : nullptr;
                if (extras) pairs ? weigh<true, HR_PAIRS>(r, n, vs) : weigh<true, false>(r, n, vs);
                else pairs ? weigh<false, HR_PAIRS>(r, n, vs) : weigh<false, false>(r, n, vs);
            }
        }
        for (int64_t r = 0; r < rows; r += MR) {
#define CALL(R) \
    pairs ? mix_rows<HR_PAIRS, R>(m.p + r * ldp, ldp, values, n, padded, keep + r, take + r, m.out + r * padded) \
          : mix_rows<false, R>(m.p + r * ldp, ldp, values, n, padded, keep + r, take + r, m.out + r * padded)
            HR_BY_ROWS(rows - r, CALL)
#undef CALL
        }
    }

    void prefetch_panel(const uint32_t *panel) const {
        const char *p = (const char *)panel;
        for (int64_t i = 0; i < 16 * padded * kv->item; i += 64) __builtin_prefetch(p + i, 0, 2);
    }
    void fetch(int64_t position, int64_t i, const uint32_t **keys, const uint32_t **values, float *ks, float *vs) {
        int64_t block = table[position / kv->block_size];
        if (block < 0 || block >= kv->blocks) block = 0;
        int64_t within = position % kv->block_size, offset = hr_kv_group(kv, block, kv_head, within);
        uint32_t *room = m.panels + 2 * i * 16 * padded;
        keys[i] = panel_of(kv, kv->keys + offset, true, room);
        room += 16 * padded;
        values[i] = panel_of(kv, kv->values + offset, false, room);
        int64_t present = extent.context - position;
        if (present < 16) values[i] = clear_absent(values[i], padded, pairs, present, room);
        if (kv->key_scales) {
            int64_t scales = hr_kv_scales(kv, block, kv_head, within);
            memcpy(ks + 16 * i, kv->key_scales + scales, 64);
            memcpy(vs + 16 * i, kv->value_scales + scales, 64);
        }
    }

    // Finish row r's scores over n groups from position `first` on: scale, soft cap and slopes, then the mask, then the
    // maximum.
    template <bool Extras> void adjust(int64_t r, int64_t first, int64_t n, const float *ks) {
        float *s = m.s + r * SEGMENT;
        int64_t lo = start(r) - first, hi = position(r) + 1 - first, count = 16 * n;
        vf high = vset(-INFINITY);
        for (int64_t i = 0; i < count; i += W) {
            vf x = vload(s + i);
            if (Extras) x = adjusted(x, r, first, i, ks);
            if (i < lo || i + W > hi) {
                vi at = lanes() + (int32_t)i;
                x = (at >= (int32_t)lo) & (at < (int32_t)hi) ? x : vset(-INFINITY);
            }
            vstore(s + i, x);
            high = vmax(x, high);
        }
        top[r] = high;
    }
    // Compute the maxima of rows [begin, end), and the factors that join this segment to those before. `unit` converts
    // scores to exponents of 2.
    void settle(int64_t begin, int64_t end, float unit) {
        for (int64_t r = begin; r < end; r++) now[r] = hmax(top[r]) * unit;
        for (int64_t r = begin; r < end; r += W) {
            vf high = vmax(vload_n(now + r, end - r), vset(NOTHING)), before = vload_n(peak + r, end - r);
            vf next = vmax(high, before);
            vstore_n(now + r, high, end - r);
            vstore_n(keep + r, vexp2<5>(before - next), end - r);
            vstore_n(take + r, vexp2<5>(high - next), end - r);
            vstore_n(peak + r, next, end - r);
        }
    }
    // Replace row r's scores by weights, exp(score - maximum).
    template <bool Extras, bool Pairs> void weigh(int64_t r, int64_t n, const float *vs) {
        const float *s = m.s + r * SEGMENT;
        uint32_t *to = m.p + r * ldp;
        vf shift = vset(-now[r]), factor = vset(Extras ? LOG2E : a->scale * LOG2E), total = {};
        for (int64_t i = 0; i < 16 * n; i += W) {
            vf x = vfma(vload(s + i), factor, shift);
            vf p = vexp2<Pairs && HR_DOT ? 3 : 5>(x);  // bfloat16 keeps 8 bits of it
            total = total + p;
            if (Extras && vs) p = p > 0.0f ? p * vload(vs + i) : vf{};
#if HR_DOT
            if (Pairs) {
                storeu((uint16_t *)to + i, (vh)_mm512_cvtneps_pbh((__m512)p));
                continue;
            }
#endif
            vstore((float *)to + i, p);
        }
        sum[r] = vfma(sum[r], vset(keep[r]), total * vset(take[r]));
    }

    inline __attribute__((always_inline)) vf adjusted(vf x, int64_t r, int64_t first, int64_t i,
                                                      const float *ks) const {
        if (ks) x = x * vload(ks + i);
        x = x * vset(a->scale);
        if (a->soft_cap != 0.0f) x = vset(a->soft_cap) * vtanh(x / vset(a->soft_cap));
        if (a->alibi) {
            vi distance = lanes() + (int32_t)(first + i - position(r));
            x = x + vset(a->alibi[head0 + r % heads]) * __builtin_convertvector(distance, vf);
        }
        return x;
    }
    void save(int64_t r, float *to) const {
        to[0] = peak[r];
        memcpy(to + 16, &sum[r], sizeof(vf));
        memcpy(to + 32, m.out + r * padded, (size_t)padded * 4);
    }
    // Join the saved state of one segment to row r's.
    void add(int64_t r, const float *from) {
        float now = from[0], next = now > peak[r] ? now : peak[r];
        float kept = sexp2(peak[r] - next), taken = sexp2(now - next), *o = m.out + r * padded;
        sum[r] = vfma(sum[r], vset(kept), vload(from + 16) * vset(taken));
        for (int64_t i = 0; i < padded; i += W)
            vstore(o + i, vfma(vload(o + i), vset(kept), vload(from + 32 + i) * vset(taken)));
        peak[r] = next;
    }
    void write(int64_t r) const {
        float total = hsum(sum[r]), factor = 1.0f;
        if (a->sinks) {
            float sink = a->sinks[head0 + r % heads] * LOG2E, next = sink > peak[r] ? sink : peak[r];
            factor = sexp2(peak[r] - next);
            total = total * factor + sexp2(sink - next);
        }
        vf by = vset(total > 0.0f ? factor / total : 0.0f);
        float *to = a->out + (query(r) - a->q);
        const float *o = m.out + r * padded;
        for (int64_t i = 0; i < kv->dim; i += W) vstore_n(to + i, vload(o + i) * by, kv->dim - i);
    }
};

}  // namespace
#endif
