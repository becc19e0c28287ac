"""Arithmetic whose bits depend only on a row's own data, in plain torch on any device.

torch chooses its algorithm by the shape: a matrix product of one row sums in another order than one of sixteen, the end
of a vectorized loop calls another `exp`, and a large reduction is split by the number of threads. The functions here
always call torch with the same shapes, and sum in a defined order. Additions, products, quotients and maxima of single
elements are exact by IEEE 754 and need no such care.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

__all__ = ["PIECE", "ROWS", "elementwise", "matmul_rows", "pad", "root", "tree_sum"]

Tensor = torch.Tensor
ROWS = 16
"""Rows per matrix product."""
_COLUMNS = 512
"""Columns of x per matrix product: of more than 768, MKL lets each thread sum a part on Intel processors."""
PIECE = 2048
"""Elements per call of a transcendental function: a multiple of all vector widths, too few to split over threads."""


def pad(x: Tensor, dim: int, multiple: int) -> Tensor:
    """x with zeros appended along `dim` up to a multiple of `multiple`; x itself if its size is one already."""
    missing = -x.shape[dim] % multiple
    if not missing:
        return x
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat([x, x.new_zeros(shape)], dim)


def matmul_rows(x: Tensor, matrix: Tensor) -> Tensor:
    """x [T, K] times a float32 matrix [N, K], transposed: float32 [T, N].

    Tiles of 16 rows; N and K are padded to 16. The sums of 512 columns each are added in order.
    """
    matrix = pad(pad(matrix, 0, ROWS), 1, ROWS)
    padded = pad(pad(x.float(), 1, ROWS), 0, ROWS).contiguous()
    out = padded.new_empty(padded.shape[0], matrix.shape[0])
    transposed = matrix.t()
    for start in range(0, len(padded), ROWS):
        tile, sums = padded[start : start + ROWS], out[start : start + ROWS]
        torch.mm(tile[:, :_COLUMNS], transposed[:_COLUMNS], out=sums)
        for first in range(_COLUMNS, padded.shape[1], _COLUMNS):
            sums += torch.mm(tile[:, first : first + _COLUMNS], transposed[first : first + _COLUMNS])
    return out


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for an elementwise function; float32 in and out."""
    pieces = pad(x.reshape(-1), 0, PIECE).view(-1, PIECE)
    if not len(pieces):
        return x
    out = torch.stack([function(piece) for piece in pieces.unbind()])
    return out.view(-1)[: x.numel()].view(x.shape)


def root(x: Tensor) -> Tensor:
    """The square root, correctly rounded on every code path of torch."""
    return elementwise(torch.sqrt, x)


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension: pad with zeros to a power of two, then add halves (x_i + x_{i + n/2}) until one is
    left."""
    size = x.shape[-1]
    width = 1 << max(size - 1, 0).bit_length()
    x = functional.pad(x, (0, width - size)) if width != size else x
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0]
