// Codes and scales of a panel, converted for the arithmetic.
#ifndef HEADRACE_LINEAR_CODES_H
#define HEADRACE_LINEAR_CODES_H
#include "cpu.h"
#include "cpu_lanes.h"

namespace {

// One class per layout of codes. `get<J>(p)`: columns 4 J to 4 J + 3 of the step that starts at p. The step is 16 or 32
// columns.
struct Codes4 {
    static constexpr int BITS = 4;
    static constexpr bool SMALL = true, WHOLE = true;
    HR_INLINE Codes4 make(const hr_part *) { return {}; }
    template <int J> inline __attribute__((always_inline)) C get(const uint8_t *p) const {
        C v = cload(p + J / 2 * 64);
        return cmask(J % 2 ? cshr<4>(v) : v, 15);
    }
};
struct Codes4Table {
    static constexpr int BITS = 4;
    static constexpr bool SMALL = false, WHOLE = false;
    C table;
    HR_INLINE Codes4Table make(const hr_part *part) { return {ctable(part->table)}; }
    template <int J> inline __attribute__((always_inline)) C get(const uint8_t *p) const {
        return clookup(Codes4{}.get<J>(p), table);
    }
};
struct Codes5 {
    static constexpr int BITS = 5;
    static constexpr bool SMALL = true, WHOLE = false;
    HR_INLINE Codes5 make(const hr_part *) { return {}; }
    template <int J> inline __attribute__((always_inline)) C get(const uint8_t *p) const {
        C top = cload(p + 256);
        return cor(Codes4{}.get<J>(p), cmask(J < 4 ? cshl<4 - (J & 3)>(top) : cshr<J & 3>(top), 16));
    }
};
struct Codes6 {
    static constexpr int BITS = 6;
    static constexpr bool SMALL = true, WHOLE = false;
    HR_INLINE Codes6 make(const hr_part *) { return {}; }
    template <int J> inline __attribute__((always_inline)) C get(const uint8_t *p) const {
        const uint8_t *q = p + J / 4 * 192;
        C top = cload(q + 128), placed;
        if constexpr (J % 4 == 0) placed = cshl<4>(top);
        else if constexpr (J % 4 == 1) placed = cshl<2>(top);
        else if constexpr (J % 4 == 2) placed = top;
        else placed = cshr<2>(top);
        return cor(Codes4{}.get<J % 4>(q), cmask(placed, 48));
    }
};
struct Codes8 {
    static constexpr int BITS = 8;
    static constexpr bool SMALL = false, WHOLE = true;
    HR_INLINE Codes8 make(const hr_part *) { return {}; }
    template <int J> inline __attribute__((always_inline)) C get(const uint8_t *p) const { return cload(p + J * 64); }
};

HR_INLINE int64_t padded(int64_t columns) { return (columns + 31) / 32 * 32; }

// Scale and addend of sixteen rows in stored group g.
HR_INLINE F scale_at(const hr_part *part, const uint8_t *panel, int64_t g) {
    const uint8_t *p = panel + part->scale_at;
    F s = fzero();
    switch (part->scale) {
    case HR_SCALE_F16: s = load_f16(p + 32 * g); break;
    case HR_SCALE_F32: s = fload((const float *)p + 16 * g); break;
    case HR_SCALE_E8M0: s = load_e8m0(p + 16 * g); break;
    case HR_SCALE_K:
        s = fmul(load_f16(panel + part->super_at + g * part->group / 256 * 32), load_s8(p + 16 * g));
        break;
    }
    return fmul(s, fset(part->factor));
}
HR_INLINE F zero_at(const hr_part *part, const uint8_t *panel, int64_t g) {
    const uint8_t *p = panel + part->min_at + 16 * g;
    return part->min == HR_MIN_S8 ? load_s8(p) : load_u8(p);
}
HR_INLINE F addend_at(const hr_part *part, const uint8_t *panel, int64_t g, F scale) {
    const uint8_t *p = panel + part->min_at;
    switch (part->min) {
    case HR_MIN_F16: return load_f16(p + 32 * g);
    case HR_MIN_F32: return fload((const float *)p + 16 * g);
    case HR_MIN_K: {
        F super = load_f16(panel + part->min_super_at + g * part->group / 256 * 32);
        return fsub(fzero(), fmul(super, load_s8(p + 16 * g)));
    }
    case HR_MIN_U8:
    case HR_MIN_S8: return fsub(fzero(), fmul(scale, zero_at(part, panel, g)));
    }
    return fzero();
}

// value(g) of each stored group, for every step that it covers: [steps][16].
template <class Value> HR_INLINE void for_steps(const hr_part *part, int64_t steps, float *out, Value value) {
    int64_t repeat = part->group / part->step;
    if (repeat == 1) {
        for (int64_t t = 0; t < steps; t++) fstore(out + 16 * t, value(t));
        return;
    }
    for (int64_t g = 0, t = 0; t < steps; g++) {
        F v = value(g);
        for (int64_t i = 0; i < repeat && t < steps; i++, t++) fstore(out + 16 * t, v);
    }
}

// Scales (and addends) of every step of a panel. The common kinds have loops without a branch inside.
inline void decode_scales(const hr_part *part, const uint8_t *panel, int64_t steps, float *scales, float *addends) {
    const uint8_t *s = panel + part->scale_at, *m = panel + part->min_at;
    if (part->scale == HR_SCALE_F16 && part->factor == 1.0f)
        for_steps(part, steps, scales, [=](int64_t g) { return load_f16(s + 32 * g); });
    else for_steps(part, steps, scales, [=](int64_t g) { return scale_at(part, panel, g); });
    if (part->min == HR_MIN_F16) for_steps(part, steps, addends, [=](int64_t g) { return load_f16(m + 32 * g); });
    else if (part->min)
        for_steps(part, steps, addends, [=](int64_t g) { return addend_at(part, panel, g, scale_at(part, panel, g)); });
}

template <class Codes, int J>
HR_INLINE void expand_quad(Codes codes, const uint8_t *p, F offset, F scale, F addend, bool add, float *out) {
    C v = codes.template get<J>(p);
    F x[4] = {column<0>(v), column<1>(v), column<2>(v), column<3>(v)};
    for (int j = 0; j < 4; j++) {
        F y = fmul(fsub(x[j], offset), scale);
        fstore(out + 16 * (4 * J + j), add ? fadd(y, addend) : y);
    }
}

// Float values of columns [begin, end) of a panel, [columns][16]; begin is a multiple of 32; the last step is written
// completely, also past `end`.
template <class Codes>
inline void expand_codes(const hr_part *part, const uint8_t *panel, int64_t begin, int64_t end, float *out) {
    Codes codes = Codes::make(part);
    F middle = fset(part->offset_bits < 0 ? 0.0f : (float)(1 << part->offset_bits));
    bool zeros = part->min == HR_MIN_U8 || part->min == HR_MIN_S8, add = part->min != HR_MIN_NONE && !zeros;
    for (int64_t k = begin; k < end; k += 32, out += 512) {
        for (int half = 0; half < 2; half++) {
            int64_t g = (k + 16 * half) / part->group;
            F s = scale_at(part, panel, g), m = add ? addend_at(part, panel, g, s) : fzero();
            F offset = zeros ? fadd(middle, zero_at(part, panel, g)) : middle;
            const uint8_t *p = panel + k * 2 * Codes::BITS;
            if (half == 0) {
                expand_quad<Codes, 0>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 1>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 2>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 3>(codes, p, offset, s, m, add, out);
            } else {
                expand_quad<Codes, 4>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 5>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 6>(codes, p, offset, s, m, add, out);
                expand_quad<Codes, 7>(codes, p, offset, s, m, add, out);
            }
        }
    }
}

inline void expand_floats(const hr_part *part, const uint8_t *panel, int64_t begin, int64_t end, float *out) {
    if (part->code == HR_CODE_BF16) {
        for (int64_t k = begin; k < end; k += 2, out += 32) {
            C v = cload(panel + 32 * k);
            fstore(out, bf_even(v));
            fstore(out + 16, bf_odd(v));
        }
    } else if (part->code == HR_CODE_F16) {
        for (int64_t k = begin; k < end; k++, out += 16) fstore(out, load_f16(panel + 32 * k));
    } else {
        for (int64_t k = begin; k < end; k++, out += 16) {
            C v = load_e4m3_pairs(panel + k / 2 * 32);
            fstore(out, fmul(k % 2 ? bf_odd(v) : bf_even(v), scale_at(part, panel, k / part->group)));
        }
    }
}

// expand_codes for every format except HR_CODE_F32, whose panels already are floats.
inline void expand(const hr_part *part, const uint8_t *panel, int64_t begin, int64_t end, float *out) {
    switch (part->code) {
    case HR_CODE_4:
        if (part->has_table) expand_codes<Codes4Table>(part, panel, begin, end, out);
        else expand_codes<Codes4>(part, panel, begin, end, out);
        break;
    case HR_CODE_5: expand_codes<Codes5>(part, panel, begin, end, out); break;
    case HR_CODE_6: expand_codes<Codes6>(part, panel, begin, end, out); break;
    case HR_CODE_8: expand_codes<Codes8>(part, panel, begin, end, out); break;
    default: expand_floats(part, panel, begin, end, out);
    }
}

}  // namespace
#endif
