// Arguments of the mixture of experts. T tokens, E experts, k of them per token, D model columns, F columns of an
// expert.
#ifndef HEADRACE_MOE_H
#define HEADRACE_MOE_H
#include "../linear/cpu.h"

typedef struct hr_moe_args {
    const float *x;         // [T, D]
    const float *router;    // [T, E]
    const float *bias;      // [E], added only for the choice; or null
    float *y;               // [T, D]
    const hr_packed *gate_up;  // parts gate_0, up_0, gate_1, up_1, … of F rows each
    const hr_packed *down;     // parts down_0, down_1, … of D rows each
    int32_t *chosen;        // [T, k]: experts in descending order of score
    float *shares;          // [T, k]
    int32_t *order;         // [T k]: pairs (token, rank), sorted by expert, then by token
    int32_t *place;         // [T k]: index of a pair in `order`
    int32_t *first;         // [E + 1]: index in `order` of an expert's first pair
    float *hidden;          // [T k, F], in that order
    float *out;             // [T k, D], in that order
    hr_dim m;               // T
    int32_t experts, top_k, columns, width;  // E, k, D, F
    int32_t sigmoid, renormalize, groups, top_groups, group_best, kind;
    float scale;
} hr_moe_args;
HR_LAYOUT(hr_moe_args, x, router, bias, y, gate_up, down, chosen, shares, order, place, first, hidden, out, m,
          experts, top_k, columns, width, sigmoid, renormalize, groups, top_groups, group_best, kind, scale);

// Of the operators for experts that are distributed over ranks. own_experts: `moe.gate_up` and `moe.down` hold the
// experts [begin, begin + held), and y is [T k, D], a row for each pair. mix_experts: `moe.x` is [T k, ranks D], a block
// of D columns from each rank; of a pair's row the block of its expert's rank is added.
typedef struct hr_experts_args {
    hr_moe_args moe;
    int32_t begin, held, ranks;
} hr_experts_args;
HR_LAYOUT(hr_experts_args, moe, begin, held, ranks);

#endif
