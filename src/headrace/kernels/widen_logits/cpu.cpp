// Spreads logits of a reduced vocabulary over the whole one; tokens outside it get -inf.
#include "headrace.h"

struct widen_logits_args {
    const float *x;  // [R, narrow]
    float *y;        // [R, wide]
    const int32_t *columns;  // [wide]; the column of x, or -1
    hr_dim rows;
    int32_t narrow, wide;
};
HR_LAYOUT(widen_logits_args, x, y, columns, rows, narrow, wide);

HR_KERNEL(widen_logits) {
    const auto *a = (const widen_logits_args *)args;
    int64_t wide = a->wide, begin, end;
    hr_share(ctx, hr_size(ctx, a->rows) * wide, 16, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t r = u / wide, column = a->columns[u % wide];
        a->y[u] = column < 0 || column >= a->narrow ? -__builtin_inff() : a->x[r * a->narrow + column];
    }
}
