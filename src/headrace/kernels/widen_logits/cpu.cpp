// Spreads logits of a reduced vocabulary over the whole one; tokens outside it get -inf.
#include "headrace.h"
#include "simd.h"

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
    while (begin < end) {
        // A part of one row.
        int64_t r = begin / wide, first = begin - r * wide, stop = end - r * wide < wide ? end - r * wide : wide;
        const float *x = a->x + r * a->narrow;
        float *y = a->y + r * wide;
        for (int64_t t = first; t < stop; t += W) {
            int64_t left = stop - t < W ? stop - t : W;
            vstore_n(y + t, vset(-INFINITY), left);
            if (left == W && !any(loadu<vi>(a->columns + t) >= 0)) continue;
            for (int64_t at = t; at < t + left; at++) {
                int32_t column = a->columns[at];
                if (column >= 0 && column < a->narrow) y[at] = x[column];
            }
        }
        begin = r * wide + stop;
    }
}
