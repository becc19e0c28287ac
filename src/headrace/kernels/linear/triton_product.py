"""The products: x [M, K] times a weight [N, K] in one of `triton_pack`'s forms. Requires triton.

A program makes a tile of the result and sums over K in ascending steps of one size, so a row's bits depend on the
tile's shape and on nothing else of the batch.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.tritonlib.device import decode_e4m3, jit, jit_varying, tanh

__all__ = ["coded_kernel", "dense_kernel", "four_bits", "step"]


@jit
def _finish(
    total: tensor, out: tensor, bias: tensor, row: tensor, column: tensor, rows: tensor, columns: tensor,
    out_stride: tensor, soft_cap: tensor, CAP: tl.constexpr,
) -> None:  # fmt: skip
    """Add the bias, apply the soft cap, and write the tile."""
    if bias is not None:
        total += tl.load(bias + column, column < columns, 0.0).to(tl.float32)[None, :]
    if CAP:
        total = soft_cap * tanh(total / soft_cap)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    target = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), inside)


@jit_varying("rows")
def dense_kernel(
    x: tensor, weight: tensor, bias: tensor, picks: tensor, out: tensor, rows: int, columns: int, depth: int,
    out_stride: int, soft_cap: float, CAP: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """weight float [columns, depth]; `picks` [rows] are the rows of x to use. WIDE: multiply in float32."""
    # Grid (tiles of BM rows, tiles of BN columns). `x` is [rows, depth] or, with `picks`, any rows of a larger matrix;
    # `weight` is [columns, depth] as stored, so a tile of it is read with columns as the inner dimension and needs no
    # transposed copy; `bias` is [columns] or None, `out` [rows, out_stride], of which this weight fills `columns` from
    # the pointer on.
    # The program walks the depth in ascending steps of BK and keeps its tile of sums in float32. The step is the same
    # for every number of rows, so a row's sum has one order in every batch. EVEN: BK divides the depth, so that masks
    # along it are not needed; rows and columns past the end are read as zeros.
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    source = row if picks is None else tl.load(picks + row, row < rows, 0)
    x_row = x + source.to(tl.int64)[:, None] * depth
    w_row = weight + column.to(tl.int64)[None, :] * depth
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, depth, BK):
        k = start + tl.arange(0, BK)
        x_in, w_in = (row < rows)[:, None], (column < columns)[None, :]
        if not EVEN:
            x_in, w_in = x_in & (k < depth)[None, :], w_in & (k < depth)[:, None]
        a = tl.load(x_row + k[None, :], x_in, 0.0)
        b = tl.load(w_row + k[:, None], w_in, 0.0)
        if WIDE:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(a, b, total)
    _finish(total, out, bias, row, column, rows, columns, out_stride, soft_cap, CAP)


@jit
def four_bits(byte: tensor, HIGH: tl.constexpr, FP4: tl.constexpr) -> tensor:
    """float32 codes of one half of packed bytes; E2M1 by moving its bits to where float16 has them."""
    code = (byte >> 4) if HIGH else (byte & 15)
    if FP4:
        wide = code.to(tl.uint16)
        bits = ((wide & 8) << 12) | ((wide & 7) << 9)
        return (bits.to(tl.float16, bitcast=True) * 16384.0).to(tl.float32)
    return code.to(tl.float32)


@jit
def step(
    total: tensor, a: tensor, w: tensor, scales: tensor, offsets: tensor, x_scales: tensor, k: tensor, row: tensor,
    column: tensor, rows: tensor, columns: tensor, x_groups: tensor, GROUP: tl.constexpr, X_GROUP: tl.constexpr,
    OFFSET: tl.constexpr, LATE: tl.constexpr, MATH: tl.constexpr, FLOAT: tl.constexpr,
) -> tensor:  # fmt: skip
    """total + a [BM, BK] times codes w [BK, BN] of one group, whose first column is k.

    MATH: `float` for weights dequantized to FLOAT; `int8`, `ocp` or `fnuz` (E4M3 of the matrix unit) for a product of
    codes.
    """
    place, inside = k // GROUP * columns + column, column < columns
    if MATH == "int8":
        part = tl.dot(a, w, out_dtype=tl.int32).to(tl.float32)
    elif MATH == "ocp":
        part = tl.dot(a.to(tl.float8e4nv, bitcast=True), w.to(tl.float8e4nv, bitcast=True), max_num_imprecise_acc=128)
    elif MATH == "fnuz":
        part = 4.0 * tl.dot(a.to(tl.float8e4b8, bitcast=True), w.to(tl.float8e4b8, bitcast=True))
    else:
        w = w.to(tl.float32)
        if OFFSET == 1:
            w -= tl.load(offsets + place, inside, 0.0).to(tl.float32)[None, :]
        if not LATE:
            w *= tl.load(scales + place, inside, 0.0).to(tl.float32)[None, :]
        if OFFSET == 2:
            w += tl.load(offsets + place, inside, 0.0).to(tl.float32)[None, :]
        part = tl.dot(a.to(FLOAT), w.to(FLOAT), input_precision="ieee")
    if MATH != "float" and not LATE:
        part *= tl.load(scales + place, inside, 0.0).to(tl.float32)[None, :]
    if X_GROUP:
        part *= tl.load(x_scales + row.to(tl.int64) * x_groups + k // X_GROUP, row < rows, 0.0)[:, None]
    return total + part


@jit_varying("rows")
def coded_kernel(
    x: tensor, codes: tensor, scales: tensor, offsets: tensor, x_scales: tensor, order: tensor, bias: tensor,
    picks: tensor, out: tensor, rows: int, columns: int, depth: int, x_groups: int, out_stride: int, soft_cap: float,
    CAP: tl.constexpr, KIND: tl.constexpr, FOUR: tl.constexpr, GROUP: tl.constexpr, X_GROUP: tl.constexpr,
    OFFSET: tl.constexpr, LATE: tl.constexpr, MATH: tl.constexpr, FLOAT: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """codes of KIND int8, fp8, int4 or fp4. LATE: there is one scale per column, applied at the end."""
    # Grid (tiles of BM rows, tiles of BN columns). `x` is [., depth]: floats, int8 codes or bytes of E4M3, with
    # `x_scales` [rows] or [rows, x_groups] for codes. `codes` is [columns, depth], or for four bits
    # [depth / 2, columns] with two columns of the matrix per byte (see `triton_pack`); `scales` and `offsets` are
    # [groups, columns]; `order` [depth] gives the column of x for each code.
    # The program walks the depth in ascending steps of BK. For four bits a step reads one run of bytes and multiplies
    # twice: the low halves are BK columns, the high halves the BK after them, so no lane has to be exchanged. A step
    # never spans two groups of scales. Its product is of floats, dequantized in registers, or of codes on the matrix
    # unit (MATH), whose integer or FP8 sum is then scaled; with LATE the only scale of a column is applied at the end.
    # Sums of steps are float32 in one order for every number of rows.
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    source = row if picks is None else tl.load(picks + row, row < rows, 0)
    x_row, x_in, w_in = x + source.to(tl.int64)[:, None] * depth, (row < rows)[:, None], (column < columns)[None, :]
    total, lane = tl.zeros([BM, BN], tl.float32), tl.arange(0, BK)
    for start in range(0, depth, 2 * BK if FOUR else BK):
        for half in tl.static_range(2 if FOUR else 1):
            first = start + half * BK
            k = first + lane
            at = k if order is None else tl.load(order + k, k < depth, 0)
            here = x_in if EVEN else x_in & (k < depth)[None, :]
            a = tl.load(x_row + at[None, :], here, 0)
            if MATH == "float" and x.dtype.element_ty == tl.uint8:
                a = decode_e4m3(a)
            if FOUR:
                run = codes + (tl.zeros([1], tl.int64) + start // 2)[:, None] * columns
                byte = tl.load(run + lane[:, None] * columns + column[None, :], w_in, 0)
                w = four_bits(byte, half == 1, KIND == "fp4")
            else:
                here = w_in if EVEN else w_in & (k < depth)[:, None]
                w = tl.load(codes + column.to(tl.int64)[None, :] * depth + k[:, None], here, 0)
                if KIND == "fp8" and MATH == "float":
                    w = decode_e4m3(w)
            total = step(
                total, a, w, scales, offsets, x_scales, tl.minimum(first, depth - 1), row, column, rows, columns,
                x_groups, GROUP, X_GROUP, OFFSET, LATE, MATH, FLOAT,
            )  # fmt: skip
    if LATE:
        total *= tl.load(scales + column, column < columns, 0.0).to(tl.float32)[None, :]
    if x_scales is not None and not X_GROUP:
        total *= tl.load(x_scales + row, row < rows, 0.0)[:, None]
    _finish(total, out, bias, row, column, rows, columns, out_stride, soft_cap, CAP)
