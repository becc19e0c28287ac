// y = act(x[:, :F]) * x[:, F:].
#include "cpu_activate.h"

#include "headrace.h"

struct gated_activation_args {
    const float *x;  // [rows, 2 F]
    float *y;        // [rows, F]
    hr_dim rows;
    int32_t width;   // F
    int32_t kind;    // 0 silu, 1 gelu, 2 gelu_tanh
};
HR_LAYOUT(gated_activation_args, x, y, rows, width, kind);

namespace {

template <int Kind> void rows(const gated_activation_args *a, int64_t begin, int64_t end) {
    int64_t n = a->width;  // units are elements of the output, so that a single row is split, too
    for (int64_t at = begin; at < end;) {
        int64_t r = at / n, c = at % n, stop = n - c < end - at ? n : c + (end - at);
        const float *gate = a->x + r * 2 * n, *up = gate + n;
        float *y = a->y + r * n;
        int64_t i = c;
        for (; i + W <= stop; i += W) vstore(y + i, activate<Kind>(vload(gate + i)) * vload(up + i));
        int64_t left = stop - i;
        if (left > 0) vstore_n(y + i, activate<Kind>(vload_n(gate + i, left)) * vload_n(up + i, left), left);
        at += stop - c;
    }
}

}  // namespace

HR_KERNEL(gated_activation) {
    const auto *a = (const gated_activation_args *)args;
    int64_t begin, end;
    hr_share(ctx, hr_size(ctx, a->rows) * a->width, 64, &begin, &end);
    if (a->kind == 0) rows<0>(a, begin, end);
    else if (a->kind == 1) rows<1>(a, begin, end);
    else rows<2>(a, begin, end);
}
