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

// Most runs of tokens lie outside the reduced vocabulary: such a run is filled without looking at each.
HR_KERNEL(widen_logits) {
    constexpr int64_t RUN = 16;
    const auto *a = (const widen_logits_args *)args;
    int64_t wide = a->wide, begin, end;
    uint32_t narrow = (uint32_t)a->narrow;
    hr_share(ctx, hr_size(ctx, a->rows) * wide, RUN, &begin, &end);
    for (int64_t count; begin < end; begin += count) {
        int64_t r = begin / wide, first = begin % wide;
        count = end - begin < wide - first ? end - begin : wide - first;
        const float *x = a->x + r * a->narrow;
        const int32_t *columns = a->columns + first;
        float *y = a->y + begin;
        for (int64_t i = 0; i < count; i += RUN) {
            int64_t n = count - i < RUN ? count - i : RUN;
            bool any = n < RUN;
            if (n == RUN) {
                for (int64_t k = 0; k < RUN; k++) any |= (uint32_t)columns[i + k] < narrow;
                for (int64_t k = 0; k < RUN; k++) y[i + k] = -__builtin_inff();
            }
            for (int64_t k = 0; any && k < n; k++) {
                uint32_t column = (uint32_t)columns[i + k];
                y[i + k] = column < narrow ? x[column] : -__builtin_inff();
            }
        }
    }
}
