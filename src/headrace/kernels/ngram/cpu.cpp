// Drafts from a sequence's own text: what followed the longest earlier match of its last tokens.
//
// One thread walks over one sequence's history, from the latest place back. A place counts if two tokens match, and
// most places fail at the first of them, so the walk takes about a nanosecond a token. It ends at a match of the greatest
// length that is told apart: an earlier one would be no longer.
#include "headrace.h"

struct ngram_args {
    const int32_t *query_start, *slots, *lengths, *history;  // history [history_rows, history_width]
    int32_t *drafts;                                         // [S, most]
    int64_t history_rows, history_width, most;
};
HR_LAYOUT(ngram_args, query_start, slots, lengths, history, drafts, history_rows, history_width, most);

namespace {

constexpr int64_t SHORTEST = 2, LONGEST = 32;
constexpr int32_t NO_TOKEN = -1;

// The end of the longest match of text[..n) before its own end, or 0.
int64_t longest_match(const int32_t *text, int64_t n) {
    int64_t best = SHORTEST - 1, stop = 0;
    int32_t last = n ? text[n - 1] : 0;
    for (int64_t at = n - 1; at >= SHORTEST; at--) {
        if (text[at - 1] != last) continue;
        int64_t length = 1, limit = at < LONGEST ? at : LONGEST;
        while (length < limit && text[at - 1 - length] == text[n - 1 - length]) length++;
        if (length <= best) continue;
        best = length, stop = at;
        if (length == LONGEST) break;
    }
    return stop;
}

}  // namespace

HR_KERNEL(ngram) {
    const auto *a = (const ngram_args *)args;
    int64_t seqs = ctx->sizes[HR_S];
    for (int64_t s = hr_next(ctx); s < seqs; s = hr_next(ctx)) {
        int32_t *drafts = a->drafts + s * a->most;
        for (int64_t i = 0; i < a->most; i++) drafts[i] = NO_TOKEN;
        if (a->lengths[s] < -1 || a->query_start[s + 1] - a->query_start[s] < 2) continue;
        int64_t slot = a->slots[s];
        const int32_t *text = a->history + slot * a->history_width;
        int64_t n = slot < 0 || slot >= a->history_rows ? -1 : a->lengths[s] < 0 ? text[a->history_width - 1] : a->lengths[s];
        if (n < 0 || n >= a->history_width) {
            *ctx->error = HR_ERROR_INDEX;
            continue;
        }
        int64_t stop = longest_match(text, n);
        for (int64_t i = 0; stop && i < a->most; i++) drafts[i] = text[stop + i % (n - stop)];
    }
}
