// Logits: the linear product on the requested rows.
#include "../linear/cpu_whole.h"

HR_KERNEL(logits) {
    const auto *a = (const hr_logits_args *)args;
    hr_linear_run(&a->linear, a->rows, a->soft_cap, ctx);
}
