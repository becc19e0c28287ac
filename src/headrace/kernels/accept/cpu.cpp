// Counts the drafts of each placed sequence that were sampled, and adds them and one token to its length.
#include "headrace.h"

struct accept_args {
    const int32_t *query_start, *slots, *rows, *lengths, *drafts, *tokens;
    int32_t *history;  // [history_rows, history_width]
    int32_t *counts;   // [S, 2]
    int64_t history_rows, history_width, most;
};
HR_LAYOUT(accept_args, query_start, slots, rows, lengths, drafts, tokens, history, counts, history_rows, history_width,
          most);

HR_KERNEL(accept) {
    const auto *a = (const accept_args *)args;
    if (ctx->part) return;
    int64_t rows = ctx->sizes[HR_R], row = 0;
    for (int64_t s = 0; s < ctx->sizes[HR_S]; s++) {
        int32_t *count = a->counts + 2 * s;
        count[0] = count[1] = 0;
        while (row < rows && a->rows[row] < a->query_start[s]) row++;
        if (a->lengths[s] < -1) continue;
        int64_t slot = a->slots[s], drafts = a->query_start[s + 1] - a->query_start[s] - 1;
        const int32_t *draft = a->drafts + s * a->most;
        while (count[1] < drafts && count[1] < a->most && draft[count[1]] >= 0) count[1]++;
        // The step may have ended behind the last draft: see `place`.
        if (slot < 0 || slot >= a->history_rows || drafts > a->most || row + count[1] >= rows) {
            *ctx->error = HR_ERROR_INDEX;
            count[1] = 0;
            continue;
        }
        while (count[0] < count[1] && draft[count[0]] == a->tokens[row + count[0]]) count[0]++;
        count[0]++;
        a->history[(slot + 1) * a->history_width - 1] += count[0];
    }
}
