// Runs real tile instructions on a processor that has none: each raises SIGILL, and the handler decodes it, does what
// amx_emulated.h does, and steps over it. So the code that the compiler made for such processors is what is tested.
#include <signal.h>
#include <ucontext.h>

#include "amx_emulated.h"

namespace {

struct sigaction before;
int64_t trapped = 0;

// Registers in the order of their numbers in instructions.
const int ORDER[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                       REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// VEX with three bytes, an opcode of the map 0F38, ModRM and what it asks for.
struct Instruction {
    const uint8_t *at;
    const greg_t *regs;
    int prefix, opcode, vvvv, mod, reg, rm, length;
    int64_t base, index;  // of memory: the address without an index, and index times scale

    int64_t value(int i) const { return regs[ORDER[i]]; }

    Instruction(const uint8_t *code, const greg_t *from) : at(code), regs(from), base(0), index(0) {
        prefix = at[2] & 3;
        vvvv = ~(at[2] >> 3) & 15;
        opcode = at[3];
        mod = at[4] >> 6;
        reg = (at[4] >> 3 & 7) | (at[1] & 0x80 ? 0 : 8);
        rm = at[4] & 7;
        length = 5;
        if (mod != 3) memory();
        else rm |= at[1] & 0x20 ? 0 : 8;
    }
    void memory() {
        int high = at[1] & 0x20 ? 0 : 8, first = rm;
        if (rm == 4) {
            int sib = at[length++], scaled = (sib >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
            first = sib & 7;
            if (scaled != 4) index = value(scaled) * (1 << (sib >> 6));
        }
        bool absolute = mod == 0 && first == 5;  // no base: relative to what follows, or just a number
        int bytes = mod == 1 ? 1 : mod == 2 || absolute ? 4 : 0;
        int32_t displacement = 0;
        if (bytes == 1) displacement = (int8_t)at[length];
        if (bytes == 4) memcpy(&displacement, at + length, 4);
        length += bytes;
        base = displacement + (absolute ? (rm == 5 ? (int64_t)(at + length) : 0) : value(first | high));
    }
};

bool run(const Instruction &i) {
    enum { NONE, P66, F3, F2 };
    if (i.opcode == 0x49 && i.mod != 3 && i.prefix == NONE) return emulated_loadconfig((const void *)(i.base + i.index)), true;
    if (i.opcode == 0x49 && i.mod == 3 && i.prefix == NONE) return emulated_release(), true;
    if (i.opcode == 0x49 && i.mod == 3 && i.prefix == F2) return emulated_zero(i.reg), true;
    if (i.opcode == 0x4b && i.mod != 3 && i.prefix == F2) return emulated_loadd(i.reg, (const void *)i.base, i.index), true;
    if (i.opcode == 0x4b && i.mod != 3 && i.prefix == F3) return emulated_stored(i.reg, (void *)i.base, i.index), true;
    if (i.mod != 3) return false;
    if (i.opcode == 0x5c && i.prefix == F3) return emulated_dpbf16ps(i.reg, i.rm, i.vvvv), true;
    if (i.opcode == 0x5e && i.prefix == F2) return emulated_dpbssd(i.reg, i.rm, i.vvvv), true;
    if (i.opcode == 0x5e && i.prefix == F3) return emulated_dpbsud(i.reg, i.rm, i.vvvv), true;
    return false;
}

void handle(int, siginfo_t *, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const auto *code = (const uint8_t *)regs[REG_RIP];
    if (code[0] == 0xc4 && (code[1] & 31) == 2 && !(code[2] & 0x84)) {  // the map 0F38, W and L zero
        Instruction instruction(code, regs);
        if (run(instruction)) {
            __atomic_fetch_add(&trapped, 1, __ATOMIC_RELAXED);
            regs[REG_RIP] += instruction.length;
            return;
        }
    }
    sigaction(SIGILL, &before, nullptr);  // not ours: it is raised again
}

}  // namespace

extern "C" {
void amx_trap() {
    struct sigaction mine = {};
    mine.sa_sigaction = handle;
    mine.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &mine, &before);
}
void amx_untrap() { sigaction(SIGILL, &before, nullptr); }
int64_t amx_trapped() { return trapped; }
}
