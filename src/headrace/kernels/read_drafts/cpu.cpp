// Reads the drafts that a drafter's passes have written to the history, behind the known tokens of placed sequences.
#include "headrace.h"

struct read_drafts_args {
    const int32_t *query_start, *slots, *lengths;
    const int32_t *history;  // [history_rows, history_width]
    int32_t *drafts;         // [S, most]
    int64_t history_rows, history_width, most;
};
HR_LAYOUT(read_drafts_args, query_start, slots, lengths, history, drafts, history_rows, history_width, most);

HR_KERNEL(read_drafts) {
    const auto *a = (const read_drafts_args *)args;
    if (ctx->part) return;
    for (int64_t s = 0; s < ctx->sizes[HR_S]; s++) {
        int32_t *drafts = a->drafts + s * a->most;
        for (int64_t i = 0; i < a->most; i++) drafts[i] = -1;
        if (a->lengths[s] < -1) continue;
        int64_t slot = a->slots[s], count = a->query_start[s + 1] - a->query_start[s] - 1;
        if (slot < 0 || slot >= a->history_rows || count > a->most) {
            *ctx->error = HR_ERROR_INDEX;
            continue;
        }
        const int32_t *row = a->history + slot * a->history_width;
        int64_t known = a->lengths[s] < 0 ? row[a->history_width - 1] : a->lengths[s];
        for (int64_t i = 0; i < count && known + i < a->history_width - 1; i++) {
            int32_t token = known < 0 ? -1 : row[known + i];
            if (token < 0) break;
            drafts[i] = token;
        }
    }
}
