// From logits to tokens: constraints, penalties, truncation, one reproducible random choice, logprobs. The rules are
// those of reference.py and the files beside it. One thread computes a row; all rows read the history before any row
// writes it.
#include "cpu_clean.h"
#include "cpu_random.h"
#include "cpu_rank.h"

struct sample_args {
    const float *logits;  // [R, V]
    const float *temperature, *top_p, *min_p, *repetition, *presence, *frequency;
    const int32_t *top_k, *position, *target, *slot, *prompt_len;
    const uint64_t *seed;
    const int32_t *bias_row, *bias_token;  // [sizes[HR_B]]
    const float *bias_value;
    const uint32_t *allowed;  // [masks, words]
    const int32_t *allowed_row;
    int32_t *history;  // [history_rows, history_width]
    int32_t *tokens, *ranks, *top_ids;
    float *logprobs, *top_logprobs;
    int64_t history_rows, history_width, masks, words, vocab;
    int32_t num_logprobs, alternatives;  // -1: none at all; alternatives is the width of top_ids
};
HR_LAYOUT(sample_args, logits, temperature, top_p, min_p, repetition, presence, frequency, top_k, position, target,
          slot, prompt_len, seed, bias_row, bias_token, bias_value, allowed, allowed_row, history, tokens, ranks,
          top_ids, logprobs, top_logprobs, history_rows, history_width, masks, words, vocab, num_logprobs,
          alternatives);

namespace {

typedef sample_args Args;
constexpr float GREEDY_BELOW = 1e-5f;
constexpr int32_t NO_TOKEN = -1, NO_CHOICE = -2, NOT_FINITE = -3;  // as in headrace.types

// Whether no logit is NaN or +inf.
HR_INLINE bool sound(const float *x, int64_t n) {
    vf largest = vset(LARGEST);
    vi good[2] = {largest <= largest, largest <= largest};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        for (int k = 0; k < 2; k++) good[k] &= vload(x + i + k * W) <= largest;
    for (; i < n; i += W) good[0] &= vload_n(x + i, n - i, -INFINITY) <= largest;
    return !any(~(good[0] & good[1]));
}
// The lowest token whose cleaned logit is `value`, the largest of them.
HR_INLINE int64_t find(const float *x, int64_t n, float value) {
    vf least = vset(value);
    for (int64_t i = 0; i < n; i += 4 * W) {
        vi hit = {};
        for (int k = 0; k < 4; k++) hit |= vload_n(x + i + k * W, n - i - k * W, -INFINITY) >= least;
        if (!any(hit)) continue;
        for (int64_t t = i; t < n && t < i + 4 * W; t++)
            if (x[t] >= value) return t;
    }
    return 0;
}

struct Row {
    const Args *a;
    int64_t r, n;
    const float *raw;  // cleaned, and finite somewhere
    float raw_peak;
    bool finite;
    float *work, *held;     // [V] each
    int32_t *counts;        // [V]
    uint64_t *keys;         // [V]

    Row(const Args *args, hr_ctx *ctx, int64_t row) : a(args), r(row), n(args->vocab) {
        int64_t room = (n + 63) & ~(int64_t)63;
        work = (float *)ctx->scratch, held = work + room;
        counts = (int32_t *)(held + room), keys = (uint64_t *)(counts + room);
        raw = a->logits + r * n;
        raw_peak = peak_of(raw, n);
        finite = raw_peak != -INFINITY && sound(raw, n);
        if (raw_peak == -INFINITY) {
            memset(held, 0, (size_t)n * 4);
            raw = held, raw_peak = 0.0f;
        }
    }
    static int64_t scratch(int64_t vocab) { return ((vocab + 63) & ~(int64_t)63) * 20; }

    bool penalised() const { return a->repetition[r] != 1.0f || a->presence[r] != 0.0f || a->frequency[r] != 0.0f; }
    bool biased(int64_t biases) const {
        for (int64_t b = 0; b < biases; b++)
            if (a->bias_row[b] == r) return true;
        return false;
    }
    bool masked() const { return a->allowed_row[r] >= 0 && a->allowed_row[r] < a->masks; }

    void constrain(int64_t biases) {
        for (int64_t i = 0; i < n; i += W) vstore_n(work + i, clean(vload_n(raw + i, n - i)), n - i);
        for (int64_t b = 0; b < biases; b++)
            if (a->bias_row[b] == r && a->bias_token[b] >= 0 && a->bias_token[b] < n)
                work[a->bias_token[b]] = work[a->bias_token[b]] + a->bias_value[b];
        if (masked()) {
            const uint32_t *bits = a->allowed + a->allowed_row[r] * a->words;
            for (int64_t t = 0; t < n; t++) work[t] = bits[t / 32] >> (t % 32) & 1 ? work[t] : -INFINITY;
        }
        if (penalised()) penalise();
    }
    void penalise() {
        int64_t slot = a->slot[r], end = a->position[r];
        if (slot < 0 || slot >= a->history_rows) return;
        const int32_t *tokens = a->history + slot * a->history_width;
        end = end < a->history_width ? end : a->history_width;
        memset(counts, 0, (size_t)n * 4);
        for (int64_t i = 0; i < end; i++)
            if (tokens[i] >= 0 && tokens[i] < n)
                counts[tokens[i]] = (counts[tokens[i]] | 1) + (i >= a->prompt_len[r] ? 2 : 0);
        for (int64_t i = 0; i < end; i++) {
            int64_t t = tokens[i];
            if (t < 0 || t >= n || !counts[t]) continue;
            float x = work[t], output = (float)(counts[t] >> 1);
            x = x > 0.0f ? x / a->repetition[r] : x * a->repetition[r];
            x = x - a->presence[r] * (output > 0.0f ? 1.0f : 0.0f);
            work[t] = x - a->frequency[r] * output;
            counts[t] = 0;
        }
    }

    int64_t choose(int64_t biases) {
        const float *x = raw;
        float peak = raw_peak, temperature = a->temperature[r];
        if (biased(biases) || masked() || penalised()) {
            constrain(biases);
            x = work, peak = peak_of(work, n);
            if (peak == -INFINITY) return NO_CHOICE;
        }
        if (!(temperature >= GREEDY_BELOW)) return find(x, n, peak);
        vf top = vset(peak), by = vset(temperature);
        for (int64_t i = 0; i < n; i += W)
            vstore_n(work + i, (clean(vload_n(x + i, n - i)) - top) / by, n - i);
        bool ranked = (a->top_k[r] > 0 && a->top_k[r] < n) || a->top_p[r] < 1.0f;
        return ranked ? draw_ranked() : draw_all();
    }
    static bool any_above(const float *x, int64_t left, float least) {
        vi hit = {};
        for (int k = 0; k < 4; k++) hit |= vexp(vload_n(x + k * W, left - k * W, -INFINITY)) >= least;
        return any(hit);
    }
    // Over the complete vocabulary, or the tokens that min_p keeps. The likeliest token gives a first bound: tokens
    // that cannot reach the largest sum so far get no noise, which are nearly all.
    int64_t draw_all() const {
        uint32_t position = (uint32_t)a->position[r];
        float least = a->min_p[r], high = -INFINITY, noise[4 * W];
        int64_t chosen = find(work, n, 0.0f);
        float bound = work[chosen] + gumbel_one(chosen, position, a->seed[r]);
        for (int64_t i = 0; i < n; i += 4 * W) {
            float top = hmax(largest(work + i, n - i));
            if (top + MOST_NOISE < bound || (least > 0.0f && !any_above(work + i, n - i, least))) continue;
            vu words[4];
            philox((vu)(lanes() + (int32_t)(i / 4)), position, a->seed[r], words);
            if (!reaches(words, bound - top)) continue;
            gumbel_block(words, noise);
            for (int k = 0; k < 4 && i + k * W < n; k++) {
                int64_t at = i + k * W;
                vf x = vload_n(work + at, n - at, -INFINITY), y = x + vload(noise + k * W);
                if (least > 0.0f) y = vexp(x) >= least ? y : vset(-INFINITY);
                float best = hmax(y);
                if (!(best > high)) continue;
                high = best;
                for (int j = W - 1; j >= 0; j--)
                    if (y[j] == best) chosen = at + j;
            }
            bound = high > bound ? high : bound;
        }
        return chosen;
    }
    static vf largest(const float *x, int64_t left) {
        vf found = vset(-INFINITY);
        for (int k = 0; k < 4; k++) found = vmax(vload_n(x + k * W, left - k * W, -INFINITY), found);
        return found;
    }
    int64_t draw_ranked() {
        int64_t k = a->top_k[r] > 0 && a->top_k[r] < n ? a->top_k[r] : n, kept = k;
        float top_p = a->top_p[r], least = a->min_p[r];
        if (top_p >= 1.0f || k < n) best(work, n, k, 0.0f, 8.0f, keys);
        if (top_p < 1.0f) kept = k < n ? nucleus(k, total_of(k), least, top_p) : nucleus_of_all(least, top_p);
        float high = -INFINITY;
        int64_t chosen = token_of(keys[0]);
        for (int64_t i = 0; i < kept; i++) {
            int64_t t = token_of(keys[i]);
            if (i && !(sexp(work[t]) >= least)) continue;
            float y = work[t] + gumbel_one(t, (uint32_t)a->position[r], a->seed[r]);
            if (y > high || (y == high && t < chosen)) high = y, chosen = t;
        }
        return chosen;
    }
    double total_of(int64_t k) const {
        double total = 0;
        for (int64_t i = 0; i < k; i++) {
            float e = sexp(work[token_of(keys[i])]);
            total += e >= a->min_p[r] ? e : 0.0f;
        }
        return total;
    }
    // The number of leading ranked tokens, out of k, until their mass reaches top_p; at least one.
    int64_t nucleus(int64_t k, double total, float least, float top_p) const {
        double before = 0;
        for (int64_t i = 0; i < k; i++) {
            if (i && !(before < (double)top_p * total)) return i;
            float e = sexp(work[token_of(keys[i])]);
            before += e >= least ? e : 0.0f;
        }
        return k;
    }
    int64_t nucleus_of_all(float least, float top_p) {
        typedef double vd __attribute__((vector_size(W * 8)));
        vd sums = {};
        for (int64_t i = 0; i < n; i += W) {
            vf e = vexp(vload_n(work + i, n - i, -INFINITY));
            sums += __builtin_convertvector(e >= least ? e : vf{}, vd);
        }
        double total = 0;
        for (int j = 0; j < W; j++) total += sums[j];
        for (float reach = 8.0f;; reach *= 4.0f) {
            bool all = reach > 1e4f;
            int64_t count = gather_above(work, n, all ? -INFINITY : -reach, keys);
            sort_best(keys, count, count);
            int64_t kept = nucleus(count, total, least, top_p);
            if (kept < count || all) return kept;
        }
    }

    void score(int64_t token) {
        vf top = vset(raw_peak), sums[4] = {};
        vi above = {};
        token = token < 0 || token >= n ? 0 : token;
        float own = clean(vset(raw[token]))[0];
        for (int64_t i = 0, k = 0; i < n; i += W, k++) {
            vf x = clean(vload_n(raw + i, n - i, -INFINITY));
            sums[k % 4] = sums[k % 4] + vexp(x - top);
            above -= x > own;
        }
        vf log_total = vlog(vset(hsum((sums[0] + sums[2]) + (sums[1] + sums[3]))));
        int32_t rank = 1;
        for (int j = 0; j < W; j++) rank += above[j];
        a->ranks[r] = rank;
        a->logprobs[r] = own - raw_peak - log_total[0];
        if (!a->alternatives) return;
        for (int64_t i = 0; i < n; i += W) vstore_n(work + i, clean(vload_n(raw + i, n - i)), n - i);
        best(work, n, a->alternatives, raw_peak, 8.0f, keys);
        for (int64_t k = 0; k < a->alternatives; k++) {
            int64_t t = token_of(keys[k]), at = r * a->alternatives + k;
            a->top_ids[at] = (int32_t)t;
            a->top_logprobs[at] = work[t] - raw_peak - log_total[0];
        }
    }
};

void remember(const Args *a, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t slot = a->slot[r], position = a->position[r];
        if (a->tokens[r] < 0 || position < 0 || position >= a->history_width) continue;
        if (slot < 0 || slot >= a->history_rows) continue;
        a->history[slot * a->history_width + position] = a->tokens[r];
    }
}

}  // namespace

HR_KERNEL(sample) {
    const auto *a = (const Args *)args;
    if (Row::scratch(a->vocab) > ctx->scratch_bytes) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    int64_t rows = ctx->sizes[HR_R];
    if (ctx->phase) return ctx->part ? void() : remember(a, rows);
    hr_again(ctx);
    for (int64_t r = hr_next(ctx); r < rows; r = hr_next(ctx)) {
        Row row(a, ctx, r);
        bool sampled = a->target[r] == NO_TOKEN;
        int64_t token = !sampled ? a->target[r] : row.finite ? row.choose(ctx->sizes[HR_B]) : NOT_FINITE;
        if (a->num_logprobs >= 0) row.score(token);
        a->tokens[r] = !row.finite ? NOT_FINITE : sampled ? (int32_t)token : NO_TOKEN;
    }
}
