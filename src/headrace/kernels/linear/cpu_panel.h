// One panel of a weight times many prepared rows.
#ifndef HEADRACE_LINEAR_PANEL_H
#define HEADRACE_LINEAR_PANEL_H
#include "cpu_inputs.h"

namespace {

constexpr int CHUNK = 128;  // columns that are dequantized at a time for float32 arithmetic

// The destination of a panel's outputs.
struct Out {
    float *y;           // row 0, first column of the panel
    int64_t stride;     // floats per row
    int64_t rows;       // rows of the panel that exist: 1 to 16
    const float *bias;  // of the panel's first row, or null

    inline __attribute__((always_inline)) void put(int64_t r, F v) const {
        fstore_n(y + r * stride, bias ? fadd(v, fload_n(bias, rows)) : v, rows);
    }
    template <int R> inline __attribute__((always_inline)) void put_rows(int64_t r, const F *v) const {
        float *to = y + r * stride;
        const int64_t step = stride;
        if (rows >= 16 && !bias) {
#pragma GCC unroll 16
            for (int i = 0; i < R; i++) fstore(to + i * step, v[i]);
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < R; i++) put(r + i, v[i]);
        }
    }
};

struct Rows {
    const char *x;  // prepared row 0
    int64_t stride, count;
};

// The tile of `size` rows from row r on.
template <int R, class Tile> HR_INLINE void run_tile(int64_t size, int64_t r, const Tile &tile) {
    if (size == R) return tile.template run<R>(r);
    if constexpr (R > 1) run_tile<R - 1>(size, r, tile);
}
// All rows, in as few passes over the panel as tiles of at most MOST rows need, and in tiles of about the same size:
// those of one and two rows are bound by the latency of their sums. A multiple of `unit` rows stays together.
template <int MOST = TILE, class Tile> HR_INLINE void for_tiles(int64_t rows, const Tile &tile, int64_t unit = 1) {
    static_assert(MOST % 2 == 0, "a unit has one row or two");
    int64_t passes = (rows + MOST - 1) / MOST;
    for (int64_t i = 0, r = 0; i < passes; i++) {
        int64_t end = rows / unit * (i + 1) / passes * unit;
        run_tile<MOST>(end - r, r, tile);
        r = end;
    }
}

// `pair`: two prepared rows per output, added.
template <class Codes, int Columns, bool Min> struct TileI8 {
    Codes codes;
    Stream from;
    int64_t wide;
    int offset_bits;
    const float *scales, *addends;
    Rows in;
    const Out *out;
    bool pair;
    template <int R> inline void run(int64_t r) const {
        F sums[R];
        const int8_t *x = (const int8_t *)in.x + r * in.stride;
        tile_i8<Codes, Columns, Min, R>(codes, from, wide / Columns, offset_bits, scales, addends, x, in.stride,
                                        (const Step *)(x + wide), sums);
        if (!pair) out->put_rows<R>(r, sums);
        else
#pragma GCC unroll 16
            for (int i = 0; i + 1 < R; i += 2) out->put((r + i) / 2, fadd(sums[i], sums[i + 1]));
    }
};

template <class Codes> struct TileI8Row {
    Codes codes;
    Stream from;
    int64_t wide;
    int offset_bits;
    F scale;
    I row_sums;
    Rows in;
    const Out *out;
    template <int R> inline void run(int64_t r) const {
        F sums[R];
        const int8_t *x = (const int8_t *)in.x + r * in.stride;
        tile_i8_row<Codes, R>(codes, from, wide / 32, offset_bits, scale, row_sums, x, in.stride,
                              (const Step *)(x + wide), sums);
        out->template put_rows<R>(r, sums);
    }
};

struct TileBf16 {
    const uint8_t *panel;
    int64_t pairs, panel_bytes;
    Rows in;
    const Out *out;
    template <int R> inline void run(int64_t r) const {
        // Memory is idle while a panel is read again: the last pass prefetches the next panel.
        int64_t ahead = r > 0 && r + R == in.count ? panel_bytes : AHEAD;
        F sums[R];
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) sums[i] = fzero();
        tile_bf16<R>(panel, pairs, ahead, (const uint8_t *)in.x + r * in.stride, in.stride, sums);
        out->template put_rows<R>(r, sums);
    }
};

// A chunk of E4M3 as bfloat16 pairs. Sums of earlier columns are in the output, unscaled if there is one scale per row.
struct TileF8 {
    const uint8_t *w;
    int64_t begin, end, wide;
    bool last, stepped;
    F scale;
    Rows in;
    const Out *out;
    template <int R> inline void run(int64_t r) const {
        F sums[R], before[R];
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) {
            before[i] = begin ? fload_n(out->y + (r + i) * out->stride, out->rows) : fzero();
            sums[i] = stepped ? fzero() : before[i];
        }
        const char *x = in.x + r * in.stride;
        tile_bf16<R>(w, (end - begin + 1) / 2, AHEAD, (const uint8_t *)x + 2 * begin, in.stride, sums);
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) {
            const float *scales = (const float *)(x + i * in.stride + 2 * wide);
            F unit = fmul(scale, fset(scales[stepped ? begin / CHUNK : 0]));
            if (stepped) sums[i] = ffma(sums[i], unit, before[i]);
            else if (last) sums[i] = fmul(sums[i], unit);
            if (last) out->put(r + i, sums[i]);
            else fstore_n(out->y + (r + i) * out->stride, sums[i], out->rows);
        }
    }
};

// Sums of earlier columns are in the output.
struct TileF32 {
    const float *w;
    int64_t begin, columns;
    bool last;
    Rows in;
    const Out *out;
    template <int R> inline void run(int64_t r) const {
        F sums[R];
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) sums[i] = begin ? fload_n(out->y + (r + i) * out->stride, out->rows) : fzero();
        tile_f32<R>(w, columns, (const float *)(in.x + r * in.stride) + begin, in.stride / 4, sums);
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) {
            if (last) out->put(r + i, sums[i]);
            else fstore_n(out->y + (r + i) * out->stride, sums[i], out->rows);
        }
    }
};

template <class Codes, int Columns, bool Min>
inline void panel_i8(const hr_part *part, const uint8_t *panel, int64_t wide, Rows in, const Out &out, float *scratch) {
    float *scales = scratch, *addends = scratch + wide / Columns * 16;
    decode_scales(part, panel, wide / Columns, scales, addends);
    Stream from = stream_of(part, panel, wide * 2 * Codes::BITS);
    bool pair = part->arith == HR_ARITH_I8_PAIR;
    if (pair) in = {in.x, in.stride / 2, in.count * 2};
    TileI8<Codes, Columns, Min> tile{Codes::make(part), from, wide, part->offset_bits, scales, addends, in, &out, pair};
    constexpr int most = Columns == 32 && Codes::WHOLE ? WIDE_TILE : TILE;
    for_tiles<most>(in.count, tile, pair ? 2 : 1);
}

template <class Codes>
inline void panel_i8_any(const hr_part *part, const uint8_t *panel, int64_t wide, Rows in, const Out &out,
                         float *scratch) {
    if (part->arith == HR_ARITH_I8_ROW) {
        I sums = part->row_sum_at ? iload(panel + part->row_sum_at) : iset16(0);
        Stream from = stream_of(part, panel, wide * 2 * Codes::BITS);
        F scale = scale_at(part, panel, 0);
        for_tiles(in.count, TileI8Row<Codes>{Codes::make(part), from, wide, part->offset_bits, scale, sums, in, &out});
    } else if (part->step == 32) {
        if (part->min) panel_i8<Codes, 32, true>(part, panel, wide, in, out, scratch);
        else panel_i8<Codes, 32, false>(part, panel, wide, in, out, scratch);
    } else if constexpr (Codes::BITS != 5) {
        if (part->min) panel_i8<Codes, 16, true>(part, panel, wide, in, out, scratch);
        else panel_i8<Codes, 16, false>(part, panel, wide, in, out, scratch);
    }
}

inline void panel_f32(const hr_part *part, const uint8_t *panel, int64_t columns, Rows in, const Out &out,
                      float *scratch) {
    if (part->code == HR_CODE_F32)
        return for_tiles(in.count, TileF32{(const float *)panel, 0, columns, true, in, &out});
    for (int64_t k = 0; k < columns; k += CHUNK) {
        int64_t end = k + CHUNK < columns ? k + CHUNK : columns;
        expand(part, panel, k, end, scratch);
        for_tiles(in.count, TileF32{scratch, k, end - k, end == columns, in, &out});
    }
}

inline void panel_f8(const hr_part *part, const uint8_t *panel, int64_t columns, Rows in, const Out &out,
                     float *scratch) {
    uint8_t *w = (uint8_t *)scratch;
    for (int64_t k = 0; k < columns; k += CHUNK) {
        int64_t end = k + CHUNK < columns ? k + CHUNK : columns;
        for (int64_t i = k; i < end; i += 2) {
            if (i % 4 == 0) prefetch(panel + 16 * i + AHEAD);
            cstore(w + 32 * (i - k), load_e4m3_pairs(panel + 16 * i));
        }
        F scale = scale_at(part, panel, k / part->group);
        for_tiles(in.count, TileF8{w, k, end, padded(columns), end == columns, part->step != 0, scale, in, &out});
    }
}

// Floats of scratch that `panel_product` needs.
HR_INLINE int64_t panel_scratch(int64_t columns) {
    int64_t steps = padded(columns) / 16 * 32;
    return steps > CHUNK * 16 ? steps : CHUNK * 16;
}

}  // namespace

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include "cpu_amx.h"
#elif defined(HR_AMX_EMULATED)
#include "amx_emulated.h"
#include "cpu_amx.h"
#endif

namespace {

inline void panel_product(const hr_part *part, int64_t index, int64_t columns, Rows in, const Out &out,
                          float *scratch) {
    const uint8_t *panel = part->panels + index * part->panel_bytes;
    int64_t wide = padded(columns);
#ifdef HEADRACE_LINEAR_AMX_H
    if (amx_product(part, panel, columns, in, out, scratch)) return;
#endif
    if (part->arith == HR_ARITH_F8) return panel_f8(part, panel, columns, in, out, scratch);
    if (part->arith == HR_ARITH_F32) return panel_f32(part, panel, columns, in, out, scratch);
    if (part->arith == HR_ARITH_BF16)
        return for_tiles(in.count, TileBf16{panel, (columns + 1) / 2, part->panel_bytes, in, &out});
    switch (part->code) {
    case HR_CODE_4:
        if (part->has_table) panel_i8_any<Codes4Table>(part, panel, wide, in, out, scratch);
        else panel_i8_any<Codes4>(part, panel, wide, in, out, scratch);
        break;
    case HR_CODE_5: panel_i8_any<Codes5>(part, panel, wide, in, out, scratch); break;
    case HR_CODE_6: panel_i8_any<Codes6>(part, panel, wide, in, out, scratch); break;
    case HR_CODE_8: panel_i8_any<Codes8>(part, panel, wide, in, out, scratch); break;
    }
}

}  // namespace
#endif
