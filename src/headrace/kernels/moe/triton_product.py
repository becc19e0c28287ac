"""The grouped product of experts: rows of one expert's block times its matrix, or times its gate and up.

Requires triton.

Sums have ascending steps of one size, as in `linear.triton_product`, so that a row's bits do not depend on its block.
"""

from __future__ import annotations

import triton.language as tl
from triton.language import tensor

from headrace.kernels.gated_activation.triton import activate
from headrace.kernels.linear.triton_product import four_bits, step
from headrace.kernels.tritonlib.device import decode_e4m3, jit, jit_varying

__all__ = ["expert_coded_kernel", "expert_dense_kernel", "mix_kernel"]


@jit
def _finish(
    total: tensor, second: tensor, out: tensor, bias: tensor, part: tensor, pair: tensor, column: tensor,
    columns: tensor, GATE: tl.constexpr,
) -> None:  # fmt: skip
    """Add the biases, apply the gate if there is one, and write the tile to the rows `pair`."""
    inside = column < columns
    if bias is not None:
        total += tl.load(bias + part * columns + column, inside, 0.0).to(tl.float32)[None, :]
        if GATE != "":
            second += tl.load(bias + (part + 1) * columns + column, inside, 0.0).to(tl.float32)[None, :]
    if GATE != "":
        total = activate(total, GATE) * second
    target = out + pair.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), (pair >= 0)[:, None] & inside[None, :])


@jit
def expert_dense_kernel(
    x: tensor, weight: tensor, bias: tensor, order: tensor, owner: tensor, out: tensor, columns: int, depth: int,
    divide: int, GATE: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:  # fmt: skip
    """weight float [parts, columns, depth]; pair p reads row p // divide of x.

    GATE: act(x w_2e) * (x w_2e+1), otherwise x w_e. For rows of a block without a pair, row 0 is read and nothing is
    written.
    """
    # Grid (blocks of BM pairs, tiles of BN columns). A pair is one token with one of its experts. `order` is
    # [blocks, BM]: the pairs of a block, -1 for none, all of the expert `owner`[block], so that a tile uses one matrix
    # only. A block without a pair has owner -1 and ends at once. `x` is [T, depth], or [pairs, depth] in the second
    # product; `weight` is [parts, columns, depth]: with GATE, part 2 e is expert e's gate and 2 e + 1 its up; `out` is
    # [pairs, columns].
    # The program walks the depth in ascending steps of BK, like dense_kernel. With GATE it reads a step of x once for
    # both products and combines them at the end, so that gate and up are never written. Results are written to the row
    # of their pair, not of their block, so that nothing must be sorted back.
    expert = tl.load(owner + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(order + tl.program_id(0) * BM + tl.arange(0, BM))
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    part = 2 * expert if GATE != "" else expert
    x_row = x + (tl.maximum(pair, 0) // divide).to(tl.int64)[:, None] * depth
    w_row = weight + (part * columns + column)[None, :] * depth
    w_next = weight + ((part + 1) * columns + column)[None, :] * depth
    total, second = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for start in range(0, depth, BK):
        k = start + tl.arange(0, BK)
        w_in = (column < columns)[None, :]
        if EVEN:
            a = tl.load(x_row + k[None, :])
        else:
            w_in = w_in & (k < depth)[:, None]
            a = tl.load(x_row + k[None, :], (k < depth)[None, :], 0.0)
        b = tl.load(w_row + k[:, None], w_in, 0.0)
        if WIDE:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(a, b, total)
        if GATE != "":
            b = tl.load(w_next + k[:, None], w_in, 0.0)
            if WIDE:
                second = tl.dot(a.to(tl.float32), b.to(tl.float32), second, input_precision="ieee")
            else:
                second = tl.dot(a, b, second)
    _finish(total, second, out, bias, part, pair, column, columns, GATE)


@jit
def _codes(
    codes: tensor, part: tensor, size: tensor, k: tensor, column: tensor, columns: tensor, depth: tensor, start: tensor,
    lane: tensor, inside: tensor, HIGH: tl.constexpr, KIND: tl.constexpr, FOUR: tl.constexpr, MATH: tl.constexpr,
) -> tensor:  # fmt: skip
    """[BK, BN] codes of one part; `size` is the number of elements per part."""
    own = codes + part * size
    if FOUR:
        run = own + (tl.zeros([1], tl.int64) + start // 2)[:, None] * columns
        byte = tl.load(run + lane[:, None] * columns + column[None, :], (column < columns)[None, :], 0)
        w = four_bits(byte, HIGH, KIND == "fp4")
    else:
        w = tl.load(own + column.to(tl.int64)[None, :] * depth + k[:, None], inside, 0)
        if KIND == "fp8" and MATH == "float":
            w = decode_e4m3(w)
    return w


@jit_varying("rows")
def expert_coded_kernel(
    x: tensor, codes: tensor, scales: tensor, offsets: tensor, x_scales: tensor, columns_order: tensor, bias: tensor,
    order: tensor, owner: tensor, out: tensor, columns: int, depth: int, divide: int, size: int, groups: int,
    x_groups: int, rows: int, GATE: tl.constexpr, KIND: tl.constexpr, FOUR: tl.constexpr, GROUP: tl.constexpr,
    X_GROUP: tl.constexpr, OFFSET: tl.constexpr, LATE: tl.constexpr, MATH: tl.constexpr, FLOAT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """expert_dense_kernel for codes of KIND int8, fp8, int4 or fp4: codes [parts, size], scales and offsets
    [parts, groups, columns], columns_order [parts, depth]. LATE: there is one scale per column, applied at the end."""
    # Grid, `order`, `owner`, `x` and `out` as in expert_dense_kernel; codes, scales and offsets as in coded_kernel,
    # part after part: `size` elements of codes, groups * columns of scales. `columns_order` is [parts, depth], since
    # each part may have its own order.
    # The program walks the depth in ascending steps of BK, two at a time for four bits, whose low and high halves are
    # adjacent runs of columns. With GATE, each step is done for the gate's part and then for the up's part; x is read
    # for both, because their orders may differ. The arithmetic of a step is `step` of the plain products: an expert
    # gives the same bits as a plain product with its matrix.
    expert = tl.load(owner + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(order + tl.program_id(0) * BM + tl.arange(0, BM))
    column, lane = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = tl.maximum(pair, 0) // divide
    x_row = x + row.to(tl.int64)[:, None] * depth
    total, second = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    part = 2 * expert if GATE != "" else expert
    for start in range(0, depth, 2 * BK if FOUR else BK):
        for half in tl.static_range(2 if FOUR else 1):
            first = start + half * BK
            k = first + lane
            x_in, w_in = (
                (pair >= 0)[:, None] & (k < depth)[None, :],
                (column < columns)[None, :] & (k < depth)[:, None],
            )
            for side in tl.static_range(2 if GATE != "" else 1):
                own = part + side
                at = k if columns_order is None else tl.load(columns_order + own * depth + k, k < depth, 0)
                a = tl.load(x_row + at[None, :], x_in, 0)
                if MATH == "float" and x.dtype.element_ty == tl.uint8:
                    a = decode_e4m3(a)
                w = _codes(codes, own, size, k, column, columns, depth, start, lane, w_in, half == 1, KIND, FOUR, MATH)
                s = scales + own * groups * columns
                o = offsets if offsets is None else offsets + own * groups * columns
                place = tl.minimum(first, depth - 1)
                if side == 0:
                    total = step(total, a, w, s, o, x_scales, place, row, column, rows, columns, x_groups, GROUP,
                                 X_GROUP, OFFSET, LATE, MATH, FLOAT)  # fmt: skip
                else:
                    second = step(second, a, w, s, o, x_scales, place, row, column, rows, columns, x_groups, GROUP,
                                  X_GROUP, OFFSET, LATE, MATH, FLOAT)  # fmt: skip
    if LATE:
        total *= tl.load(scales + part * columns + column, column < columns, 0.0).to(tl.float32)[None, :]
        if GATE != "":
            late = tl.load(scales + (part + 1) * columns + column, column < columns, 0.0)
            second *= late.to(tl.float32)[None, :]
    if x_scales is not None and not X_GROUP:
        scale = tl.load(x_scales + row, pair >= 0, 0.0)[:, None]
        total *= scale
        second *= scale
    _finish(total, second, out, bias, part, pair, column, columns, GATE)


@jit
def mix_kernel(out: tensor, shares: tensor, y: tensor, width: int, K: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """y [T, width]: a token's K rows of out times their shares, added in order; one program per token and BLOCK
    columns."""
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(K):
        pair = token * K + rank
        total += tl.load(out + pair * width + column, column < width, 0.0) * tl.load(shares + pair)
    tl.store(y + token * width + column, total.to(y.dtype.element_ty), column < width)
