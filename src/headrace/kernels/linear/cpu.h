// Packed weights and the arguments of the kernels that read them: linear, logits and embedding.
//
// A weight [N, K] is one or more parts of consecutive rows (fused QKV, gate and up), each in its own format. A part is
// stored in panels of 16 rows; a panel's columns are padded with zeros to a multiple of 32, and the last panel has
// padding rows. In a panel, codes come first, then scales, minima and other regions of the format, each padded to 64
// bytes:
//
//   HR_CODE_4    byte 4 n + j of every 64: columns 8 t + j (low half) and 8 t + 4 + j (high half) of row n
//   HR_CODE_6    every 16 columns: 64 + 64 bytes of HR_CODE_4 and 64 with the top bits, two each for columns j, 4 + j,
//                8 + j, 12 + j
//   HR_CODE_5    every 32 columns: 256 bytes of HR_CODE_4 and 64 with the fifth bits, bit b for columns 4 b + j
//   HR_CODE_8    byte 4 n + j of every 64: column 4 t + j of row n
//   HR_CODE_F16, HR_CODE_F32    [K][16]
//   HR_CODE_BF16, HR_CODE_E4M3  [K / 2][16][2]
#ifndef HEADRACE_LINEAR_H
#define HEADRACE_LINEAR_H
#include "headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HR_CODE_4, HR_CODE_5, HR_CODE_6, HR_CODE_8, HR_CODE_E4M3, HR_CODE_F16, HR_CODE_BF16, HR_CODE_F32 };

// The types of scales [groups][16]. HR_SCALE_K: int8, times float16 [K / 256][16] at `super_at`.
enum { HR_SCALE_NONE, HR_SCALE_F16, HR_SCALE_F32, HR_SCALE_E8M0, HR_SCALE_K };

// The addends of code times scale, [groups][16]: a float, minus a float16 times an int8 (HR_MIN_K), or minus scale
// times a zero point of 8 bits.
enum { HR_MIN_NONE, HR_MIN_F16, HR_MIN_F32, HR_MIN_K, HR_MIN_U8, HR_MIN_S8 };

// The arithmetic a part was packed for. HR_ARITH_I8: integer dot products per step of 16 or 32 columns, each scaled and
// added in float32. HR_ARITH_I8_ROW: one integer sum per row. HR_ARITH_F8: bfloat16 products of unscaled E4M3 values,
// scaled per step of 128 columns or, if step is 0, once per row. HR_ARITH_I8_PAIR: HR_ARITH_I8 on both rows of
// HR_INPUT_PAIR, added.
enum { HR_ARITH_F32, HR_ARITH_BF16, HR_ARITH_I8, HR_ARITH_I8_ROW, HR_ARITH_F8, HR_ARITH_I8_PAIR };

// The rounding of inputs before the product. HR_INPUT_DYNAMIC: int8 per step of columns, with a scale from their
// largest magnitude. HR_INPUT_PAIR: the same, with the rounding error in a second row of int8, 254 times finer: almost
// 16 bits.
enum {
    HR_INPUT_NONE,
    HR_INPUT_DYNAMIC,
    HR_INPUT_INT8_TOKEN,
    HR_INPUT_INT8_TOKEN_ASYMMETRIC,
    HR_INPUT_INT8_TENSOR,
    HR_INPUT_FP8_TOKEN,
    HR_INPUT_FP8_TENSOR,
    HR_INPUT_FP8_GROUP128,
    HR_INPUT_MXFP4,
    HR_INPUT_NVFP4,
    HR_INPUT_PAIR
};

typedef struct hr_input {
    int32_t kind, arith, step;  // HR_INPUT_*, HR_ARITH_*; columns that share a scale
    float scale;                // the checkpoint's scale, for the kinds that have one
    const int32_t *order;       // [K]: column k of the part is column order[k] of the input; null: the same
} hr_input;
HR_LAYOUT(hr_input, kind, arith, step, scale, order);

typedef struct hr_part {
    const uint8_t *panels;
    int64_t panel_bytes;
    int64_t scale_at, super_at, min_at, min_super_at, row_sum_at;  // byte offsets in a panel
    int32_t rows, column;        // rows of this part; its first column of the output
    int32_t code, scale, min, arith;
    int32_t group, step;         // columns per stored scale; columns per step of the arithmetic
    int32_t offset_bits;         // codes stand for code - (1 << offset_bits); -1: code itself
    int32_t input;               // index into inputs
    float factor;                // of every scale
    int32_t has_table;           // 4-bit codes are indices into `table`
    uint8_t table[16];
} hr_part;
HR_LAYOUT(hr_part, panels, panel_bytes, scale_at, super_at, min_at, min_super_at, row_sum_at, rows, column, code,
          scale, min, arith, group, step, offset_bits, input, factor, has_table, table);

typedef struct hr_packed {
    const hr_part *parts;
    const hr_input *inputs;
    const float *bias;  // [rows] or null
    int32_t num_parts, num_inputs;
    int32_t rows, columns;
} hr_packed;
HR_LAYOUT(hr_packed, parts, inputs, bias, num_parts, num_inputs, rows, columns);

typedef struct hr_linear_args {
    const float *x;  // [M, ldx]
    float *y;        // [M, ldy]
    const hr_packed *weight;
    hr_dim m;
    int32_t ldx, ldy;
} hr_linear_args;
HR_LAYOUT(hr_linear_args, x, y, weight, m, ldx, ldy);

typedef struct hr_logits_args {
    hr_linear_args linear;  // m: rows of the output
    const int32_t *rows;    // [m]: row of x
    float soft_cap;         // 0: none
} hr_logits_args;
HR_LAYOUT(hr_logits_args, linear, rows, soft_cap);

typedef struct hr_embedding_args {
    const int32_t *ids;  // [m]
    float *y;            // [m, columns]
    const hr_packed *table;
    const void *raw;     // not null: plain rows [., columns] of type raw_type instead of a packed table
    int32_t raw_type, columns, rows;
    float scale;
    hr_dim m;
} hr_embedding_args;
HR_LAYOUT(hr_embedding_args, ids, y, table, raw, raw_type, columns, rows, scale, m);

#ifdef __cplusplus
}
#endif
#endif
