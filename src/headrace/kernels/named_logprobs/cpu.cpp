// The logprobs of the tokens that rows name: logit - largest, plus the logprob of the row's most likely token.
#include "../sample/cpu_clean.h"

struct named_logprobs_args {
    const float *logits;  // [R, vocab]
    const int32_t *named;  // [R, width]; negative: none
    const float *top;     // [R, alternatives]
    float *y;             // [R, width]
    hr_dim rows;
    int32_t vocab, width, alternatives;
};
HR_LAYOUT(named_logprobs_args, logits, named, top, y, rows, vocab, width, alternatives);

HR_KERNEL(named_logprobs) {
    const auto *a = (const named_logprobs_args *)args;
    int64_t n = a->vocab, begin, end;
    hr_share(ctx, hr_size(ctx, a->rows), 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->logits + r * n;
        const int32_t *named = a->named + r * a->width;
        float *y = a->y + r * a->width, peak = 0.0f, top = a->top[r * a->alternatives];
        bool found = false;
        for (int32_t k = 0; k < a->width; k++) {
            y[k] = 0.0f;
            if (named[k] < 0 || named[k] >= n) continue;
            if (!found) found = true, peak = peak_of(x, n);
            y[k] = (clean(vset(x[named[k]]))[0] - peak) + top;
        }
    }
}
