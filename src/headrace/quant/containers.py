"""The few forms that all checkpoint schemes are converted to: one kernel then serves AWQ, GPTQ and all others.

| scheme | `codes` | value |
|---|---|---|
| `int4` | uint8 [N, ceil(K / 2)], even columns in low halves | (code - zero) * scale; zero is 8 if `zeros` is absent |
| `int8` | int8 [N, K] | (code - zero) * scale; zero is 0 if `zeros` is absent |
| `fp8_e4m3` | float8_e4m3fn [N, K] | code * scale |
| `mxfp4` | uint8 [N, K / 2], even columns in low halves, E2M1 | code * 2^(scale - 127), `scales` uint8 [N, K / 32] |
| `nvfp4` | as `mxfp4` | code * scale / global_scale, `scales` E4M3 [N, K / 16], `global_scale` float32 [1] |

`scales` of the first three are float32 [N, G] and `zeros` uint8 (`int4`) or int8 (`int8`) [N, G]. Column k belongs to
group k // (K / G), or to `group_index[k]` (int32 [K]) if that tensor is present (act-order).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headrace.errors import CheckpointError
from headrace.kernels.codebooks import FP4_VALUES
from headrace.kernels.weight import Weight
from headrace.quant.bits import pack_nibbles, split_nibbles

__all__ = ["fp8_weight", "int4_weight", "int8_weight", "int_weight", "mxfp4_weight", "nvfp4_weight"]

Tensor = torch.Tensor


def int_weight(
    codes: Tensor, bits: int, scales: Tensor, zeros: Tensor | None, groups: Tensor | None, name: str
) -> Weight:
    """A weight of unsigned codes [N, K] of 1 to 8 bits, in the smallest container that holds them.

    `zeros` is uint8 [N, G] in the range of the codes. None: the middle of that range, 2^(bits - 1).
    """
    middle = 1 << (bits - 1)
    if bits <= 4:
        if zeros is None and bits < 4:
            zeros = torch.full(scales.shape, middle, dtype=torch.uint8)
        return int4_weight(pack_nibbles(codes), codes.shape[1], scales, zeros, groups, name)
    if zeros is None and bits < 8:
        zeros = torch.full(scales.shape, middle, dtype=torch.uint8)
    signed = None if zeros is None else _signed(zeros)
    return int8_weight(_signed(codes), scales, signed, groups, name)


def _signed(codes: Tensor) -> Tensor:
    """uint8 minus 128, as int8: the top bit is flipped."""
    return (codes ^ 128).view(torch.int8)


def int4_weight(
    packed: Tensor, columns: int, scales: Tensor, zeros: Tensor | None, groups: Tensor | None, name: str
) -> Weight:
    tensors = {"codes": packed, "scales": scales.float(), "zeros": zeros, "group_index": groups}
    return _weight("int4", (packed.shape[0], columns), tensors, name)


def int8_weight(codes: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor | None, name: str) -> Weight:
    tensors = {"codes": codes, "scales": scales.float(), "zeros": zeros, "group_index": groups}
    return _weight("int8", (codes.shape[0], codes.shape[1]), tensors, name)


def fp8_weight(codes: Tensor, scales: Tensor, groups: Tensor | None, name: str) -> Weight:
    tensors = {"codes": codes, "scales": scales.float(), "group_index": groups}
    return _weight("fp8_e4m3", (codes.shape[0], codes.shape[1]), tensors, name)


def mxfp4_weight(packed: Tensor, scales: Tensor, name: str) -> Weight:
    return _weight("mxfp4", (packed.shape[0], packed.shape[1] * 2), {"codes": packed, "scales": scales}, name)


def nvfp4_weight(packed: Tensor, scales: Tensor, global_scale: Tensor, name: str) -> Weight:
    tensors = {"codes": packed, "scales": scales, "global_scale": global_scale.float().reshape(1)}
    return _weight("nvfp4", (packed.shape[0], packed.shape[1] * 2), tensors, name)


def _weight(scheme: str, shape: tuple[int, int], tensors: Mapping[str, Tensor | None], name: str) -> Weight:
    present = {key: value for key, value in tensors.items() if value is not None}
    _check_groups(shape, present, name)
    return Weight(scheme, shape, present, _UNPACK[scheme], wide_inputs=True, name=name)


def _check_groups(shape: tuple[int, int], tensors: Mapping[str, Tensor], name: str) -> None:
    """Check the shapes that kernels rely on. Raises CheckpointError."""
    scales, zeros, index = tensors["scales"], tensors.get("zeros"), tensors.get("group_index")
    fits = scales.dim() == 2 and scales.shape[0] == shape[0] and scales.shape[1] > 0
    if not fits or (index is None and shape[1] % scales.shape[1]):
        raise CheckpointError(f"has scales {list(scales.shape)} for a weight of {list(shape)}", tensor=name)
    if zeros is not None and zeros.shape != scales.shape:
        raise CheckpointError(f"has zero points {list(zeros.shape)} for scales {list(scales.shape)}", tensor=name)


def _by_column(weight: Weight, table: Tensor) -> Tensor:
    """Expand a value per group to a value per column, [N, G] → [N, K]."""
    groups = weight.tensors.get("group_index")
    if groups is not None:
        return table[:, groups.long()]
    return table.repeat_interleave(weight.shape[1] // table.shape[1], dim=1)


def _unpack_int(weight: Weight, codes: Tensor, middle: int) -> Tensor:
    zeros = weight.tensors.get("zeros")
    zero = middle if zeros is None else _by_column(weight, zeros.float())
    return (codes.float() - zero) * _by_column(weight, weight.tensors["scales"])


def _unpack_int4(weight: Weight) -> Tensor:
    return _unpack_int(weight, split_nibbles(weight.tensors["codes"], weight.shape[1]), 8)


def _unpack_int8(weight: Weight) -> Tensor:
    return _unpack_int(weight, weight.tensors["codes"], 0)


def _unpack_fp8(weight: Weight) -> Tensor:
    return weight.tensors["codes"].float() * _by_column(weight, weight.tensors["scales"])


def _fp4(weight: Weight) -> Tensor:
    table = torch.tensor(FP4_VALUES, device=weight.tensors["codes"].device)
    return table[split_nibbles(weight.tensors["codes"], weight.shape[1]).long()]


def _unpack_mxfp4(weight: Weight) -> Tensor:
    return torch.ldexp(_fp4(weight), _by_column(weight, weight.tensors["scales"].int() - 127))


def _unpack_nvfp4(weight: Weight) -> Tensor:
    scales = weight.tensors["scales"].float() / weight.tensors["global_scale"]
    return _fp4(weight) * _by_column(weight, scales)


_UNPACK = {
    "int4": _unpack_int4,
    "int8": _unpack_int8,
    "fp8_e4m3": _unpack_fp8,
    "mxfp4": _unpack_mxfp4,
    "nvfp4": _unpack_nvfp4,
}
