// A tape: the operators of a recorded step, in order.
#ifndef HEADRACE_TAPE_H
#define HEADRACE_TAPE_H
#include "headrace.h"

namespace hr_runtime {

struct Op {
    hr_kernel fn;
    void *args;
    uint64_t ns;  // while the tape is profiled
};

}  // namespace hr_runtime

extern "C" struct hr_tape {
    hr_runtime::Op *ops;
    int64_t count, room;
    uint64_t runs;
    int32_t profile;
};
#endif
