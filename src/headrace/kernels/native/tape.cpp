// Making tapes, and the times of their operators.
#include "tape.h"

#include <stdlib.h>
#include <string.h>

using hr_runtime::Op;

extern "C" {

HR_EXPORT hr_tape *hr_tape_new(void) { return (hr_tape *)calloc(1, sizeof(hr_tape)); }

// Append an operator; its arguments are copied. Returns 0, or -1 if memory is short. Not allowed while the tape runs.
HR_EXPORT int32_t hr_tape_add(hr_tape *tape, hr_kernel fn, const void *args, int64_t arg_bytes) {
    if (tape->count == tape->room) {
        int64_t room = tape->room ? 2 * tape->room : 64;
        Op *ops = (Op *)realloc(tape->ops, (size_t)room * sizeof(Op));
        if (!ops) return -1;
        tape->ops = ops;
        tape->room = room;
    }
    void *copy = aligned_alloc(64, ((size_t)arg_bytes + 63) & ~(size_t)63);
    if (!copy) return -1;
    memcpy(copy, args, (size_t)arg_bytes);
    tape->ops[tape->count++] = Op{fn, copy, 0};
    return 0;
}

HR_EXPORT void hr_tape_free(hr_tape *tape) {
    for (int64_t i = 0; i < tape->count; i++) free(tape->ops[i].args);
    free(tape->ops);
    free(tape);
}

// Measure each operator from now on (or stop), from zero.
HR_EXPORT void hr_tape_profile(hr_tape *tape, int32_t on) {
    for (int64_t i = 0; i < tape->count; i++) tape->ops[i].ns = 0;
    tape->runs = 0;
    tape->profile = on;
}

// Nanoseconds of each operator over the runs since profiling began; returns the number of runs.
HR_EXPORT uint64_t hr_tape_times(hr_tape *tape, uint64_t *ns) {
    for (int64_t i = 0; i < tape->count; i++) ns[i] = tape->ops[i].ns;
    return tape->runs;
}
}
