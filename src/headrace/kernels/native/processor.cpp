// The features of this processor.
#include "headrace.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__x86_64__) && defined(__linux__)
// Whether the processor has tiles of bfloat16 and int8, the system saves them at a thread switch, and this process may
// use them. The request is made here, once for all threads, because Linux allocates the extra 8 KiB of state per thread
// only on request.
bool tiles_allowed() {
    constexpr uint32_t FEATURES = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    constexpr uint32_t STATE = 1u << 17 | 1u << 18;                // the configuration and the tiles
    constexpr long ASK = 0x1023, ALLOWED = 0x1022, TILES = 18;     // ARCH_REQ_XCOMP_PERM, ARCH_GET_XCOMP_PERM
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & FEATURES) != FEATURES) return false;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & STATE) != STATE) return false;
    uint64_t allowed = 0;
    if (syscall(SYS_arch_prctl, ASK, TILES) || syscall(SYS_arch_prctl, ALLOWED, &allowed)) return false;
    return allowed >> TILES & 1;
}
#elif defined(__x86_64__)
bool tiles_allowed() { return false; }
#endif

}  // namespace

extern "C" {

HR_EXPORT int32_t hr_abi(void) { return HR_ABI; }

// Whether kernels of a level run here. 0: generic, 1: v3, 2: v4, 3: v4bf16, 4: dotprod, 5: amx. Call it before
// threads that run them are started. 6: whether dot products of bfloat16 pairs are slower here than two multiply-adds,
// as on processors of Intel.
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
    bool v4bf16 = v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
    if (level == 3) return v4bf16;
    if (level == 5) return v4bf16 && tiles_allowed();
    if (level == 6) return v4bf16 && __builtin_cpu_is("intel");
#elif defined(__aarch64__) && defined(__linux__)
    if (level == 4) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return level == 0;
}
}
