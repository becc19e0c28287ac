// The complete product as a function of the library: `logits` calls the code that `linear` is compiled into.
#ifndef HEADRACE_LINEAR_WHOLE_H
#define HEADRACE_LINEAR_WHOLE_H
#include "cpu.h"

// y[i] = x[rows ? rows[i] : i] @ weight^T + bias, and c tanh(y / c) if soft_cap c isn't 0.
#define hr_linear_run HR_PASTE(linear_run, HR_ISA)
extern "C" void hr_linear_run(const hr_linear_args *args, const int32_t *rows, float soft_cap, hr_ctx *ctx);

#endif
