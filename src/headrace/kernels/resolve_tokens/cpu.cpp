// ids = token_ids with every negative id looked up in the history; every other one is written into the history.
#include "headrace.h"

struct resolve_tokens_args {
    const int32_t *token_ids, *positions, *token_seq, *slots;
    int32_t *history;  // [history_rows, history_width]
    int32_t *ids;
    int64_t history_rows, history_width;
};
HR_LAYOUT(resolve_tokens_args, token_ids, positions, token_seq, slots, history, ids, history_rows, history_width);

HR_KERNEL(resolve_tokens) {
    const auto *a = (const resolve_tokens_args *)args;
    if (ctx->part) return;
    for (int64_t t = 0; t < ctx->sizes[HR_T]; t++) {
        int32_t seq = a->token_seq[t];
        int64_t slot = seq >= 0 && seq < ctx->sizes[HR_S] ? a->slots[seq] : -1, position = a->positions[t];
        if (slot < 0 || slot >= a->history_rows || position < 0 || position >= a->history_width) {
            *ctx->error = HR_ERROR_INDEX;
            a->ids[t] = 0;
            continue;
        }
        int32_t *place = a->history + slot * a->history_width + position;
        if (a->token_ids[t] >= 0) *place = a->token_ids[t];
        a->ids[t] = *place;
    }
}
