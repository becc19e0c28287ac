// The tile instructions in plain C++, as Intel's manual describes them, for processors that have none: kernels compiled with
// HR_AMX_EMULATED use these in place of the compiler's. What would fault ends the process and says why.
#ifndef AMX_EMULATED_H
#define AMX_EMULATED_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

struct EmulatedTile {
    int rows, row_bytes;
    uint8_t bytes[16][64];
};

struct EmulatedTiles {
    bool configured;
    EmulatedTile tile[8];
};

inline EmulatedTiles &emulated() {
    static thread_local EmulatedTiles tiles;
    return tiles;
}

inline void emulated_need(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "tiles: %s\n", what);
    abort();
}

inline EmulatedTile &emulated_tile(int i) {
    emulated_need(emulated().configured, "used without a configuration");
    EmulatedTile &tile = emulated().tile[i];
    emulated_need(tile.rows > 0 && tile.row_bytes > 0, "a tile without a shape is used");
    return tile;
}

// Palette 1: eight tiles of up to 16 rows of up to 64 bytes, none of which keeps what it held.
inline void emulated_loadconfig(const void *from) {
    uint8_t config[64];
    memcpy(config, from, 64);
    emulated_need(config[0] == 1, "the palette is not 1");
    for (int i = 1; i < 16; i++) emulated_need(config[i] == 0, "reserved bytes are not zero");
    memset(&emulated(), 0, sizeof(EmulatedTiles));
    emulated().configured = true;
    for (int i = 0; i < 16; i++) {
        int row_bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8, rows = config[48 + i];
        emulated_need(i < 8 || (!row_bytes && !rows), "there are eight tiles");
        emulated_need(row_bytes <= 64 && rows <= 16 && !row_bytes == !rows, "a shape that no tile has");
        if (i < 8) emulated().tile[i].rows = rows, emulated().tile[i].row_bytes = row_bytes;
    }
}

inline void emulated_release() { memset(&emulated(), 0, sizeof(EmulatedTiles)); }

inline void emulated_zero(int i) { memset(emulated_tile(i).bytes, 0, sizeof(EmulatedTile::bytes)); }

inline void emulated_loadd(int i, const void *from, int64_t stride) {
    EmulatedTile &tile = emulated_tile(i);
    memset(tile.bytes, 0, sizeof(tile.bytes));
    for (int r = 0; r < tile.rows; r++) memcpy(tile.bytes[r], (const char *)from + r * stride, (size_t)tile.row_bytes);
}

inline void emulated_stored(int i, void *to, int64_t stride) {
    const EmulatedTile &tile = emulated_tile(i);
    for (int r = 0; r < tile.rows; r++) memcpy((char *)to + r * stride, tile.bytes[r], (size_t)tile.row_bytes);
}

// C is m x n, A m x k, B k x n, in words of 32 bits.
inline void emulated_shapes(int c, int a, int b) {
    const EmulatedTile &to = emulated_tile(c), &x = emulated_tile(a), &y = emulated_tile(b);
    emulated_need(c != a && c != b && a != b, "the three tiles of a product are not three");
    emulated_need(to.rows == x.rows && to.row_bytes == y.row_bytes && x.row_bytes == 4 * y.rows, "shapes do not match");
    emulated_need(x.row_bytes % 4 == 0 && y.row_bytes % 4 == 0, "a row is no whole number of words");
}

template <class A, class B> inline void emulated_bytes(int c, int a, int b) {
    emulated_shapes(c, a, b);
    EmulatedTile &to = emulated_tile(c);
    const EmulatedTile &x = emulated_tile(a), &y = emulated_tile(b);
    for (int m = 0; m < to.rows; m++)
        for (int n = 0; n < to.row_bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, to.bytes[m] + 4 * n, 4);
            for (int k = 0; k < x.row_bytes; k++)
                sum += (uint32_t)((int32_t)(A)x.bytes[m][k] * (int32_t)(B)y.bytes[k / 4][4 * n + k % 4]);
            memcpy(to.bytes[m] + 4 * n, &sum, 4);
        }
}

inline void emulated_dpbssd(int c, int a, int b) { emulated_bytes<int8_t, int8_t>(c, a, b); }
inline void emulated_dpbsud(int c, int a, int b) { emulated_bytes<int8_t, uint8_t>(c, a, b); }
inline void emulated_dpbusd(int c, int a, int b) { emulated_bytes<uint8_t, int8_t>(c, a, b); }
inline void emulated_dpbuud(int c, int a, int b) { emulated_bytes<uint8_t, uint8_t>(c, a, b); }

// Numbers below the normal ones are zero, before and after.
inline float emulated_flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
inline float emulated_bf16(const uint8_t *p) {
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return emulated_flushed(x);
}

// Fused multiply-adds over even elements and over odd ones, each from zero; then their sum; then what was there.
inline void emulated_dpbf16ps(int c, int a, int b) {
    emulated_shapes(c, a, b);
    EmulatedTile &to = emulated_tile(c);
    const EmulatedTile &x = emulated_tile(a), &y = emulated_tile(b);
    for (int m = 0; m < to.rows; m++)
        for (int n = 0; n < to.row_bytes / 4; n++) {
            float sums[2] = {0.0f, 0.0f}, before;
            for (int k = 0; k < x.row_bytes / 4; k++)
                for (int h = 0; h < 2; h++)
                    sums[h] = emulated_flushed(fmaf(emulated_bf16(x.bytes[m] + 4 * k + 2 * h),
                                                    emulated_bf16(y.bytes[k] + 4 * n + 2 * h), sums[h]));
            memcpy(&before, to.bytes[m] + 4 * n, 4);
            float total = emulated_flushed(emulated_flushed(before) + emulated_flushed(sums[0] + sums[1]));
            memcpy(to.bytes[m] + 4 * n, &total, 4);
        }
}

}  // namespace

// The compiler's own are macros or functions, whatever it compiles for.
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbssd emulated_dpbssd
#define _tile_dpbsud emulated_dpbsud
#define _tile_dpbusd emulated_dpbusd
#define _tile_dpbuud emulated_dpbuud
#define _tile_dpbf16ps emulated_dpbf16ps
#endif
