// Products on tile registers (AMX). Sixteen rows of a panel are a B tile as stored, sixteen prepared rows an A tile.
//
// Integer sums are exact, so tiles and vectors give the same bits, and tiles are used only for products of many rows. A
// tile adds bfloat16 products in its own order (even and odd columns separately, 32 columns at a time): these use tiles
// for any number of rows, so that a row has the same bits in every batch. An output depends only on one row of A and
// one column of B, not on the rest of the tile.
#ifndef HEADRACE_LINEAR_AMX_H
#define HEADRACE_LINEAR_AMX_H

namespace {

constexpr int64_t TILES = 4;          // A tiles of 16 rows that are multiplied with a loaded B tile
constexpr int64_t TILE_ROWS = 128;    // rows whose float sums are stored between steps of integer sums
constexpr int64_t TILE_STEPS = 8;     // steps of a panel that are expanded at a time
constexpr int64_t TILED_FROM = 16;    // smallest number of rows for which integer products use tiles

// The compiler does not see that loading a tile reads memory: all writes before must be done.
HR_INLINE void written(const void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// The shapes of the eight registers, released at the end: a processor with tiles in use cannot enter deep sleep states.
class Shapes {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {}, {}, {}};
    int64_t key = 0;

    void set(int i, int64_t rows, int64_t bytes) {
        config.rows[i] = (uint8_t)rows;
        config.row_bytes[i] = (uint16_t)bytes;
    }
    void load(int64_t wanted) {
        key = wanted;
        written(&config);
        _tile_loadconfig(&config);
    }

  public:
    Shapes() = default;
    Shapes(const Shapes &) = delete;
    Shapes &operator=(const Shapes &) = delete;
    ~Shapes() {
        if (key) _tile_release();
    }
    // Sums are in 0 to 3, the last of them with `rest` rows (1 to 16); A is in 4 and 5, the last tile in 6; B, 64 bytes
    // deep, is in 7.
    void columns_of_sums(int64_t tiles, int64_t rest) {
        if (key == 32 * tiles + rest) return;
        for (int i = 0; i < TILES; i++) set(i, i == tiles - 1 ? rest : 16, 64);
        for (int i = 4; i < 6; i++) set(i, 16, 64);
        set(6, rest, 64);
        set(7, 16, 64);
        load(32 * tiles + rest);
    }
    // Sums are in 0, 1 and, with `rest` rows, 2; A is in 3, 4 and 5; B is in 6 and 7: all as deep as a step.
    void steps(int64_t depth, int64_t rest) {
        for (int i = 0; i < 3; i++) {
            set(i, i == 2 ? rest : 16, 64);
            set(3 + i, i == 2 ? rest : 16, depth);
        }
        for (int i = 6; i < 8; i++) set(i, depth / 4, 64);
        load(1);
    }
};

// 64 bytes of each row of A times one B tile per step, added to the sums; A has T tiles, the last one of the configured
// height.
template <bool Float, int T>
inline void add_products(const uint8_t *w, int64_t steps, const char *x, int64_t stride, char *sums) {
#define HR_TIMES(c, a)                              \
    if constexpr (Float) _tile_dpbf16ps(c, a, 7);   \
    else _tile_dpbsud(c, a, 7)
    _tile_loadd(0, sums, 64);
    if constexpr (T > 1) _tile_loadd(1, sums + 1024, 64);
    if constexpr (T > 2) _tile_loadd(2, sums + 2048, 64);
    if constexpr (T > 3) _tile_loadd(3, sums + 3072, 64);
    for (int64_t t = 0; t < steps; t++, w += 1024, x += 64) {
        for (int i = 0; i < 1024; i += 64) prefetch(w + i + AHEAD);
        _tile_loadd(7, w, 64);
        if constexpr (T > 1) {
            _tile_loadd(4, x, stride);
            HR_TIMES(0, 4);
        }
        if constexpr (T > 2) {
            _tile_loadd(5, x + 16 * stride, stride);
            HR_TIMES(1, 5);
        }
        if constexpr (T > 3) {
            _tile_loadd(4, x + 32 * stride, stride);
            HR_TIMES(2, 4);
        }
        _tile_loadd(6, x + 16 * (T - 1) * stride, stride);
        if constexpr (T == 1) { HR_TIMES(0, 6); }
        if constexpr (T == 2) { HR_TIMES(1, 6); }
        if constexpr (T == 3) { HR_TIMES(2, 6); }
        if constexpr (T == 4) { HR_TIMES(3, 6); }
    }
    _tile_stored(0, sums, 64);
    if constexpr (T > 1) _tile_stored(1, sums + 1024, 64);
    if constexpr (T > 2) _tile_stored(2, sums + 2048, 64);
    if constexpr (T > 3) _tile_stored(3, sums + 3072, 64);
#undef HR_TIMES
}

// Up to 64 rows; `sums` is [rows][16] of float, or of int32 (signed inputs, unsigned codes).
template <bool Float>
inline void add_columns(Shapes &shapes, const uint8_t *w, int64_t steps, const char *x, int64_t stride, int64_t rows,
                        void *sums) {
    int64_t tiles = (rows + 15) / 16;
    shapes.columns_of_sums(tiles, rows - 16 * (tiles - 1));
    written(w);
    written(sums);
    switch (tiles) {
    case 1: return add_products<Float, 1>(w, steps, x, stride, (char *)sums);
    case 2: return add_products<Float, 2>(w, steps, x, stride, (char *)sums);
    case 3: return add_products<Float, 3>(w, steps, x, stride, (char *)sums);
    default: return add_products<Float, 4>(w, steps, x, stride, (char *)sums);
    }
}

// group(first row, rows) for each 64 rows and the rest.
template <class Group> HR_INLINE void for_groups(int64_t count, int64_t most, Group group) {
    for (int64_t r = 0; r < count; r += most) group(r, count - r < most ? count - r : most);
}

inline void amx_bf16(const uint8_t *panel, int64_t wide, Rows in, const Out &out) {
    Shapes shapes;
    alignas(64) float sums[16 * TILES * 16];
    for_groups(in.count, 16 * TILES, [&](int64_t r, int64_t rows) {
        memset(sums, 0, (size_t)rows * 64);
        add_columns<true>(shapes, panel, wide / 32, in.x + r * in.stride, in.stride, rows, sums);
        for (int64_t i = 0; i < rows; i++) out.put(r + i, fload(sums + 16 * i));
    });
}

// A chunk in the form of TileF8, for up to 64 rows.
inline void amx_f8_rows(Shapes &shapes, const TileF8 &tile, int64_t r, int64_t rows) {
    alignas(64) float sums[16 * TILES * 16];
    const Out &out = *tile.out;
    const char *x = tile.in.x + r * tile.in.stride;
    auto before = [&](int64_t i) { return tile.begin ? fload_n(out.y + (r + i) * out.stride, out.rows) : fzero(); };
    for (int64_t i = 0; i < rows; i++) fstore(sums + 16 * i, tile.stepped ? fzero() : before(i));
    int64_t steps = padded(tile.end - tile.begin) / 32;
    add_columns<true>(shapes, tile.w, steps, x + 2 * tile.begin, tile.in.stride, rows, sums);
    for (int64_t i = 0; i < rows; i++) {
        const float *scales = (const float *)(x + i * tile.in.stride + 2 * tile.wide);
        F sum = fload(sums + 16 * i), unit = fmul(tile.scale, fset(scales[tile.stepped ? tile.begin / CHUNK : 0]));
        if (tile.stepped) sum = ffma(sum, unit, before(i));
        else if (tile.last) sum = fmul(sum, unit);
        if (tile.last) out.put(r + i, sum);
        else fstore_n(out.y + (r + i) * out.stride, sum, out.rows);
    }
}

inline void amx_f8(const hr_part *part, const uint8_t *panel, int64_t columns, Rows in, const Out &out,
                   float *scratch) {
    Shapes shapes;
    uint8_t *w = (uint8_t *)scratch;
    int64_t wide = padded(columns);
    for (int64_t k = 0; k < columns; k += CHUNK) {
        int64_t end = k + CHUNK < columns ? k + CHUNK : columns;
        for (int64_t i = k; i < padded(end); i += 2) {  // k and the panel's columns are multiples of 32
            if (i % 4 == 0) prefetch(panel + 16 * i + AHEAD);
            cstore(w + 32 * (i - k), load_e4m3_pairs(panel + 16 * i));
        }
        F scale = scale_at(part, panel, k / part->group);
        TileF8 tile = {w, k, end, wide, end == columns, part->step != 0, scale, in, &out};
        for_groups(in.count, 16 * TILES, [&](int64_t r, int64_t rows) { amx_f8_rows(shapes, tile, r, rows); });
    }
}

// The codes of a step of columns as a B tile, minus `offset`.
template <class Codes, int J, int End>
HR_INLINE void expand_bytes(Codes codes, const uint8_t *p, int offset, uint8_t *to) {
    typedef uint8_t Bytes __attribute__((vector_size(64)));
    if constexpr (J < End) {
        cstore(to + 64 * J, codes.template get<J>(p));
        if (offset) storeu(to + 64 * J, loadu<Bytes>(to + 64 * J) - (uint8_t)offset);
        expand_bytes<Codes, J + 1, End>(codes, p, offset, to);
    }
}

// 64 columns at a time, one integer sum over all of them. If the last tile is half empty, the rest is zeros; the inputs
// multiplied with them are bytes of the row's step.
template <class Codes>
inline void amx_i8_row(const hr_part *part, const uint8_t *panel, int64_t wide, Rows in, const Out &out) {
    Shapes shapes;
    alignas(64) uint8_t w[TILE_STEPS * 1024];
    alignas(64) int32_t sums[TILE_ROWS * 16] = {};
    Codes codes = Codes::make(part);
    F scale = scale_at(part, panel, 0);
    I row_sums = part->row_sum_at ? iload(panel + part->row_sum_at) : iset16(0);
    const int64_t each = TILE_STEPS * 64;
    for (int64_t k = 0; k < wide; k += each) {
        int64_t end = k + each < wide ? k + each : wide, steps = (end - k + 63) / 64;
        for (int64_t i = k; i < end; i += 32)
            expand_bytes<Codes, 0, 8>(codes, panel + i * 2 * Codes::BITS, 0, w + 16 * (i - k));
        memset(w + 16 * (end - k), 0, (size_t)(steps * 1024 - 16 * (end - k)));
        for_groups(in.count, 16 * TILES, [&](int64_t r, int64_t rows) {
            add_columns<false>(shapes, w, steps, in.x + r * in.stride + k, in.stride, rows, sums + 16 * r);
        });
    }
    for (int64_t r = 0; r < in.count; r++) {
        const Step *s = (const Step *)(in.x + r * in.stride + wide);
        int32_t more = part->offset_bits < 0 ? 0 : -s->minus_sum * (1 << part->offset_bits);
        I exact = isub(isub(iload(sums + 16 * r), iset16(more)), imul(iset16(s->zero), row_sums));
        out.put(r, fmul(to_f(exact), fmul(scale, fset(s->scale))));
    }
}

// The integer sums of `count` steps of up to 16 rows, [count][16][16].
template <bool Rest, int Columns>
inline void step_sums(const uint8_t *w, int64_t count, const char *x, int64_t stride, char *sums) {
    written(w);
    for (int64_t i = 0; i < count; i++, w += 16 * Columns, x += Columns, sums += 1024) {
        if constexpr (Rest) {
            _tile_zero(2);
            _tile_loadd(6, w, 64);
            _tile_loadd(5, x, stride);
            _tile_dpbssd(2, 5, 6);
            _tile_stored(2, sums, 64);
        } else if (i % 2) {
            _tile_zero(1);
            _tile_loadd(7, w, 64);
            _tile_loadd(4, x, stride);
            _tile_dpbssd(1, 4, 7);
            _tile_stored(1, sums, 64);
        } else {
            _tile_zero(0);
            _tile_loadd(6, w, 64);
            _tile_loadd(3, x, stride);
            _tile_dpbssd(0, 3, 6);
            _tile_stored(0, sums, 64);
        }
    }
}

// Scale and add as tile_i8 does, step by step, for R rows.
template <bool Min, int R>
HR_INLINE void add_steps(const int32_t *sums, int64_t count, const float *scales, const float *addends,
                         const char *info, int64_t stride, float *totals) {
    F acc[R];
    for (int r = 0; r < R; r++) acc[r] = fload(totals + 16 * r);
    for (int64_t i = 0; i < count; i++, sums += 256, info += sizeof(Step)) {
        F scale = fload(scales + 16 * i), addend = Min ? fload(addends + 16 * i) : fzero();
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Step *s = (const Step *)(info + r * stride);
            acc[r] = ffma(to_f(iload(sums + 16 * r)), fmul(scale, fset(s->scale)), acc[r]);
            if (Min) acc[r] = ffma(addend, fset(s->sum), acc[r]);
        }
    }
    for (int r = 0; r < R; r++) fstore(totals + 16 * r, acc[r]);
}

// Up to TILE_ROWS rows; `totals` is [rows][16], zero before.
template <class Codes, int Columns, bool Min>
inline void amx_i8_rows(const hr_part *part, const Stream &from, int64_t wide, Rows in, const float *scales,
                        const float *addends, float *totals) {
    Shapes shapes;
    alignas(64) uint8_t w[TILE_STEPS * Columns * 16];
    alignas(64) int32_t sums[TILE_STEPS * 256];
    Codes codes = Codes::make(part);
    int offset = part->offset_bits < 0 ? 0 : 1 << part->offset_bits;
    int64_t whole = in.count / 16 * 16;
    const uint8_t *p = from.codes;
    shapes.steps(Columns, in.count - whole ? in.count - whole : 16);
    for (int64_t t = 0; t < wide / Columns; t += TILE_STEPS) {
        int64_t rest = wide / Columns - t, count = rest < TILE_STEPS ? rest : TILE_STEPS;
        for (int64_t i = 0; i < count; i++, p += Columns * 2 * Codes::BITS) {
            for (int j = 0; j < Columns * 2 * Codes::BITS; j += 64) prefetch(from.ahead(p) + j);
            from.fetch_tail(t + i);
            expand_bytes<Codes, 0, Columns / 4>(codes, p, offset, w + i * Columns * 16);
        }
        const char *x = in.x + t * Columns, *info = in.x + wide + t * (int64_t)sizeof(Step);
        for (int64_t r = 0; r < in.count; r += 16) {
            int64_t rows = r < whole ? 16 : in.count - whole, i = 0;
            if (r < whole) step_sums<false, Columns>(w, count, x + r * in.stride, in.stride, (char *)sums);
            else step_sums<true, Columns>(w, count, x + r * in.stride, in.stride, (char *)sums);
            const float *s = scales + 16 * t, *m = addends + 16 * t;
            const char *row = info + r * in.stride;
            float *to = totals + 16 * r;
            for (; i + 8 <= rows; i += 8)
                add_steps<Min, 8>(sums + 16 * i, count, s, m, row + i * in.stride, in.stride, to + 16 * i);
            for (; i < rows; i++)
                add_steps<Min, 1>(sums + 16 * i, count, s, m, row + i * in.stride, in.stride, to + 16 * i);
        }
    }
}

template <class Codes, int Columns, bool Min>
inline void amx_i8(const hr_part *part, const uint8_t *panel, int64_t wide, Rows in, const Out &out, float *scratch) {
    float *scales = scratch, *addends = scratch + wide / Columns * 16;
    decode_scales(part, panel, wide / Columns, scales, addends);
    Stream from = stream_of(part, panel, wide * 2 * Codes::BITS);
    bool pair = part->arith == HR_ARITH_I8_PAIR;
    if (pair) in = {in.x, in.stride / 2, in.count * 2};
    alignas(64) float totals[TILE_ROWS * 16];
    for_groups(in.count, TILE_ROWS, [&](int64_t r, int64_t rows) {
        memset(totals, 0, (size_t)rows * 64);
        Rows some = {in.x + r * in.stride, in.stride, rows};
        amx_i8_rows<Codes, Columns, Min>(part, from, wide, some, scales, addends, totals);
        for (int64_t i = 0; i < rows && !pair; i++) out.put(r + i, fload(totals + 16 * i));
        for (int64_t i = 0; i < rows && pair; i += 2)
            out.put((r + i) / 2, fadd(fload(totals + 16 * i), fload(totals + 16 * i + 16)));
    });
}

template <class Codes>
inline void amx_i8_any(const hr_part *part, const uint8_t *panel, int64_t wide, Rows in, const Out &out,
                       float *scratch) {
    if (part->arith == HR_ARITH_I8_ROW) {
        for_groups(in.count, TILE_ROWS, [&](int64_t r, int64_t rows) {
            Out to = out;
            to.y += r * out.stride;
            amx_i8_row<Codes>(part, panel, wide, {in.x + r * in.stride, in.stride, rows}, to);
        });
    } else if (part->step == 32) {
        if (part->min) amx_i8<Codes, 32, true>(part, panel, wide, in, out, scratch);
        else amx_i8<Codes, 32, false>(part, panel, wide, in, out, scratch);
    } else if constexpr (Codes::BITS != 5) {
        if (part->min) amx_i8<Codes, 16, true>(part, panel, wide, in, out, scratch);
        else amx_i8<Codes, 16, false>(part, panel, wide, in, out, scratch);
    }
}

// Returns false if vectors must compute the product.
inline bool amx_product(const hr_part *part, const uint8_t *panel, int64_t columns, Rows in, const Out &out,
                        float *scratch) {
    int64_t wide = padded(columns);
    if (part->arith == HR_ARITH_F32) return false;
    if (part->arith == HR_ARITH_BF16) return amx_bf16(panel, wide, in, out), true;
    if (part->arith == HR_ARITH_F8) return amx_f8(part, panel, columns, in, out, scratch), true;
    if (in.count < TILED_FROM) return false;
    switch (part->code) {
    case HR_CODE_4:
        if (part->has_table) amx_i8_any<Codes4Table>(part, panel, wide, in, out, scratch);
        else amx_i8_any<Codes4>(part, panel, wide, in, out, scratch);
        return true;
    case HR_CODE_5: return amx_i8_any<Codes5>(part, panel, wide, in, out, scratch), true;
    case HR_CODE_6: return amx_i8_any<Codes6>(part, panel, wide, in, out, scratch), true;
    case HR_CODE_8: return amx_i8_any<Codes8>(part, panel, wide, in, out, scratch), true;
    }
    return false;
}

}  // namespace
#endif
