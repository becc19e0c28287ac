// The product as `linear` and `logits` call it.
#ifndef HEADRACE_LINEAR_RUN_H
#define HEADRACE_LINEAR_RUN_H
#include "cpu.h"

// y[i] = x[rows ? rows[i] : i] @ weight^T + bias, and c tanh(y / c) where soft_cap c isn't 0. Every thread of the team calls it.
#define hr_linear_run HR_PASTE(linear_run, HR_ISA)
extern "C" void hr_linear_run(const hr_linear_args *args, const int32_t *rows, float soft_cap, hr_ctx *ctx);

#endif
