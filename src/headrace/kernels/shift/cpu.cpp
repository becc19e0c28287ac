// Lowers the positions of sequences that have fewer known tokens than their plan assumes.
#include "headrace.h"

struct shift_args {
    const int32_t *positions, *slot_mapping, *token_seq, *query_start, *context_lens, *block_tables, *slots, *rows;
    const int32_t *bounds, *position;
    const int32_t *history;  // [history_rows, history_width]
    int32_t *new_positions, *next_positions, *new_mapping, *new_context, *new_position;
    int64_t history_rows, history_width, block_size;
};
HR_LAYOUT(shift_args, positions, slot_mapping, token_seq, query_start, context_lens, block_tables, slots, rows, bounds,
          position, history, new_positions, next_positions, new_mapping, new_context, new_position, history_rows,
          history_width, block_size);

HR_KERNEL(shift) {
    const auto *a = (const shift_args *)args;
    if (ctx->part) return;
    int64_t tokens = ctx->sizes[HR_T], rows = ctx->sizes[HR_R], blocks = ctx->sizes[HR_TABLE];
    for (int64_t t = 0; t < tokens; t++) {
        a->new_positions[t] = a->positions[t];
        a->next_positions[t] = a->positions[t] + 1;
        a->new_mapping[t] = a->slot_mapping[t];
    }
    for (int64_t s = 0; s < ctx->sizes[HR_S]; s++) {
        a->new_context[s] = a->context_lens[s];
        if (a->bounds[s] < 0) continue;
        int64_t slot = a->slots[s], begin = a->query_start[s], end = a->query_start[s + 1];
        bool valid = slot >= 0 && slot < a->history_rows && begin >= 0 && end <= tokens;
        int64_t back = valid ? a->bounds[s] - a->history[(slot + 1) * a->history_width - 1] : -1;
        for (int64_t t = begin; back >= 0 && t < end; t++) {
            int64_t position = a->positions[t] - back;
            if (position < 0 || position / a->block_size >= blocks) {
                back = -1;
                break;
            }
            int32_t block = a->block_tables[s * blocks + position / a->block_size];
            a->new_positions[t] = (int32_t)position;
            a->next_positions[t] = (int32_t)position + 1;
            a->new_mapping[t] = (int32_t)(block * a->block_size + position % a->block_size);
        }
        if (back < 0) {
            *ctx->error = HR_ERROR_INDEX;
            continue;
        }
        a->new_context[s] -= (int32_t)back;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = a->rows[r];
        bool ours = t >= 0 && t < tokens;
        a->new_position[r] = a->position[r] - (ours ? a->positions[t] - a->new_positions[t] : 0);
    }
}
