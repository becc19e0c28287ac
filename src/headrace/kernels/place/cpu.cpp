// Puts the rows of sequences whose length only the device knows at their positions, with their drafts as tokens. If the
// last sequence has fewer drafts than rows for them, the step ends behind its last draft: the operators behind this one
// see fewer tokens and rows. What they would have computed for the others is never read.
#include "headrace.h"

struct place_args {
    const int32_t *token_ids, *positions, *slot_mapping, *token_seq, *query_start, *context_lens, *block_tables, *slots;
    const int32_t *rows, *lengths, *drafts, *position;
    int32_t *history;  // [history_rows, history_width]
    int32_t *new_ids, *new_positions, *new_mapping, *new_context, *new_position;
    int64_t history_rows, history_width, most, block_size;
};
HR_LAYOUT(place_args, token_ids, positions, slot_mapping, token_seq, query_start, context_lens, block_tables, slots,
          rows, lengths, drafts, position, history, new_ids, new_positions, new_mapping, new_context, new_position,
          history_rows, history_width, most, block_size);

HR_KERNEL(place) {
    const auto *a = (const place_args *)args;
    if (ctx->part) return;
    int64_t tokens = ctx->sizes[HR_T], rows = ctx->sizes[HR_R], blocks = ctx->sizes[HR_TABLE];
    for (int64_t t = 0; t < tokens; t++) {
        a->new_ids[t] = a->token_ids[t];
        a->new_positions[t] = a->positions[t];
        a->new_mapping[t] = a->slot_mapping[t];
    }
    for (int64_t s = 0; s < ctx->sizes[HR_S]; s++) {
        a->new_context[s] = a->context_lens[s];
        int64_t slot = a->slots[s], begin = a->query_start[s], end = a->query_start[s + 1];
        if (a->lengths[s] < -1) continue;
        bool valid = slot >= 0 && slot < a->history_rows && begin >= 0 && end <= tokens && end - begin <= a->most + 1;
        int32_t *length = a->history + (slot + 1) * a->history_width - 1;
        int64_t n = !valid ? 0 : a->lengths[s] < 0 ? *length : a->lengths[s], last = n - 1 + (end - begin);
        if (n < 1 || last >= a->history_width || (last - 1) / a->block_size >= blocks) {
            *ctx->error = HR_ERROR_INDEX;
            continue;
        }
        *length = (int32_t)n;
        a->new_context[s] = (int32_t)last;
        for (int64_t t = begin; t < end; t++) {
            int64_t position = n - 1 + (t - begin);
            int32_t draft = t > begin ? a->drafts[s * a->most + t - begin - 1] : 0;
            if (t > begin) a->new_ids[t] = draft < 0 ? 0 : draft;
            a->new_positions[t] = (int32_t)position;
            int32_t block = a->block_tables[s * blocks + position / a->block_size];
            a->new_mapping[t] = (int32_t)(block * a->block_size + position % a->block_size);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = a->rows[r];
        bool placed = t >= 0 && t < tokens && a->lengths[a->token_seq[t]] >= -1;
        a->new_position[r] = placed ? a->new_positions[t] + 1 : a->position[r];
    }
    int64_t last = ctx->sizes[HR_S] - 1;
    if (last < 0 || a->lengths[last] < -1 || a->query_start[last + 1] != tokens) return;
    int64_t end = a->query_start[last] + 1;
    const int32_t *draft = a->drafts + last * a->most, *stop = draft + a->most;
    for (; end < tokens && draft < stop && *draft >= 0; draft++) end++;
    while (rows > 0 && a->rows[rows - 1] >= end) rows--;
    ctx->sizes[HR_T] = (int32_t)end;
    ctx->sizes[HR_R] = (int32_t)rows;
}
