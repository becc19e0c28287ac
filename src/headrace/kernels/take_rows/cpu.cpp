// Copies the requested rows.
#include "headrace.h"

#include <string.h>

struct take_rows_args {
    const float *x;  // [T, width]
    float *y;        // [R, width]
    const int32_t *rows;
    int64_t width;
};
HR_LAYOUT(take_rows_args, x, y, rows, width);

HR_KERNEL(take_rows) {
    const auto *a = (const take_rows_args *)args;
    int64_t begin, end;
    hr_share(ctx, ctx->sizes[HR_R], 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int64_t row = a->rows[r];
        if (row < 0 || row >= ctx->sizes[HR_T]) {
            *ctx->error = HR_ERROR_INDEX;
            return;
        }
        memcpy(a->y + r * a->width, a->x + row * a->width, (size_t)a->width * sizeof(float));
    }
}
