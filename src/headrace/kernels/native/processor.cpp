// What the processor that runs this can do.
#include "headrace.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

extern "C" {

// Whether kernels of a level run here. 0: generic, 1: v3, 2: v4, 3: v4bf16, 4: dotprod.
HR_EXPORT int32_t hr_cpu_has(int32_t level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("f16c");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512vnni");
    if (level == 1) return v3;
    if (level == 2) return v4;
    if (level == 3) return v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
#elif defined(__aarch64__) && defined(__linux__)
    if (level == 4) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return level == 0;
}
}
