// Logits of one draft of each block plus their corrections.
#include "headrace.h"
#include "simd.h"

struct correct_logits_args {
    const float *logits;       // [held, width]
    const float *corrections;  // [rows, width]
    float *y;                  // [rows, width]
    hr_dim rows;
    int32_t width, at, drafts, held;
};
HR_LAYOUT(correct_logits_args, logits, corrections, y, rows, width, at, drafts, held);

HR_KERNEL(correct_logits) {
    const auto *a = (const correct_logits_args *)args;
    int64_t width = a->width, begin, end;
    hr_share(ctx, hr_size(ctx, a->rows) * width, 16, &begin, &end);
    while (begin < end) {
        // A part of one row.
        int64_t r = begin / width, first = begin - r * width, stop = end - r * width < width ? end - r * width : width;
        int64_t row = r * a->drafts + a->at;
        if (row >= a->held) {
            *ctx->error = HR_ERROR_INDEX;
            return;
        }
        const float *x = a->logits + row * width, *more = a->corrections + r * width;
        float *y = a->y + r * width;
        for (int64_t i = first; i < stop; i += W)
            vstore_n(y + i, vload_n(x + i, stop - i, 0.0f) + vload_n(more + i, stop - i, 0.0f), stop - i);
        begin = r * width + stop;
    }
}
