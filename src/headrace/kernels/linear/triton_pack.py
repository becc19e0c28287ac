"""Packs a checkpoint's weight for the Triton products: done once at load, and stored with the weight.

| kind | `codes` | element |
|---|---|---|
| `dense` | float [N, K] | itself |
| `int8` | int8 [N, K] | (code - zero) * scale or code * scale + addend |
| `fp8` | uint8 [N, K], OCP E4M3 without -0 | code * scale |
| `int4` | uint8 [ceil(K / 2 unit) unit, N] | as `int8`, codes 0 to 15 |
| `fp4` | as `int4`, E2M1 | code * scale |

In the two packed kinds byte j of run i of 2 `unit` columns holds column 2 unit i + j in its low half and column 2 unit
i + unit + j in its high half, so that both halves are products with a run of columns and no lane is exchanged. `scales`
and `offsets` are [G, N]; `unit` columns always lie in one group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["KEY", "NO_OFFSET", "OFFSET_ADDEND", "OFFSET_ZERO", "TritonPacked", "packed"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)
KEY = "triton:packed"
"""The key of the packed parts in `Weight.prepared`."""
NO_OFFSET, OFFSET_ZERO, OFFSET_ADDEND = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TritonPacked:
    """A packed part: rows of one form."""

    kind: str
    codes: Tensor
    shape: tuple[int, int]
    scales: Tensor | None = None
    offsets: Tensor | None = None
    offset: int = NO_OFFSET
    unit: int = 64
    order: Tensor | None = None
    """int32 [K]: column k of the codes is column order[k] of the matrix."""
    source: Weight | None = None
    """For the rounding of inputs: `activation` and its static scales."""

    @property
    def group(self) -> int:
        """Columns per scale."""
        return self.shape[1] if self.scales is None else self.shape[1] // self.scales.shape[0]


def packed(weight: Weight, config: LaunchConfig) -> tuple[TritonPacked, ...]:
    """The packed parts of a weight, made at the first call; adjacent parts of one form are merged."""
    found: tuple[TritonPacked, ...] | None = weight.prepared.get(KEY)
    if found is None:
        parts: list[TritonPacked] = []
        for part in weight.parts or (weight,):
            new = _pack(part, config)
            if parts and _alike(parts[-1], new):
                parts[-1] = _merge(parts[-1], new)
            else:
                parts.append(new)
        found = weight.prepared[KEY] = tuple(parts)
    return found


def _pack(weight: Weight, config: LaunchConfig) -> TritonPacked:
    reader = _READERS.get(weight.scheme)
    form = None if reader is None else reader(weight)
    if form is None:
        _log.info("%s: %s has no packed form: %s is used", weight.name or "a weight", weight.scheme, config.dtype)
        form = TritonPacked("dense", weight.dequantize().to(config.dtype), weight.shape)
    return replace(form, source=weight if weight.activation else None)


def _alike(a: TritonPacked, b: TritonPacked) -> bool:
    """Whether both can be one matrix.

    Not where inputs are rounded: each part has its own rule; nor with reordered columns.
    """
    if a.source or b.source or a.order is not None or b.order is not None or a.kind == "dense":
        return False
    same = (a.kind, a.offset, a.unit, a.group) == (b.kind, b.offset, b.unit, b.group)
    pairs = ((a.codes, b.codes), (a.scales, b.scales), (a.offsets, b.offsets))
    return same and all(x is y or (x is not None and y is not None and x.dtype == y.dtype) for x, y in pairs)


def _merge(a: TritonPacked, b: TritonPacked) -> TritonPacked:
    def join(x: Tensor | None, y: Tensor | None, dim: int) -> Tensor | None:
        return None if x is None or y is None else torch.cat([x, y], dim)

    by_row = 1 if a.kind in ("int4", "fp4") else 0
    shape = (a.shape[0] + b.shape[0], a.shape[1])
    scales, offsets = join(a.scales, b.scales, 1), join(a.offsets, b.offsets, 1)
    return replace(a, codes=torch.cat([a.codes, b.codes], by_row), shape=shape, scales=scales, offsets=offsets)


def _unit(columns: int, groups: int, most: int) -> int | None:
    """Columns per product; None if no unit fits the group size. A single group may have any length."""
    sizes = (unit for unit in (64, 32, 16) if unit <= most)
    return most if groups == 1 else next((unit for unit in sizes if columns // groups % unit == 0), None)


def _halves(codes: Tensor, unit: int) -> Tensor:
    """Lay out codes below 16, uint8 [N, K], for the packed kinds."""
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % (2 * unit)))
    low, high = padded.view(len(codes), -1, 2, unit).unbind(2)
    return (low | (high << 4)).flatten(1).t().contiguous()


def _short(x: Tensor) -> Tensor:
    """[N, G] transposed to [G, N], as float16 if that is exact."""
    x = x.t().contiguous().float()
    half = x.half()
    return half if torch.equal(half.float(), x) else x


def _nibbles(packed_codes: Tensor, columns: int) -> Tensor:
    """Split bytes to codes, uint8 [N, columns]: even columns are in low halves."""
    return torch.stack([packed_codes & 15, packed_codes >> 4], -1).flatten(1)[:, :columns]


def _four(
    kind: str,
    codes: Tensor,
    scales: Tensor,
    offsets: Tensor | None = None,
    offset: int = NO_OFFSET,
    order: Tensor | None = None,
) -> TritonPacked | None:
    """Pack 4-bit codes uint8 [N, K] with scales and offsets [N, G]."""
    rows, columns = codes.shape
    unit = _unit(columns, scales.shape[1], 32)  # of both halves of a byte, so a step takes twice as many
    if unit is None:
        return None
    codes = codes if order is None else codes[:, order.long()]
    kept = None if offsets is None else _short(offsets)
    return TritonPacked(kind, _halves(codes, unit), (rows, columns), _short(scales), kept, offset, unit, order)


def _order(weight: Weight) -> Tensor | bool | None:
    """None if groups are equal runs; otherwise the column order that makes them so; False if there is none."""
    columns, groups = weight.shape[1], weight.tensors["scales"].shape[1]
    if columns % groups:
        return False
    index = weight.tensors.get("group_index")
    if index is None:
        return None
    if bool((torch.bincount(index.long(), minlength=groups) != columns // groups).any()):
        return False
    return torch.argsort(index.long(), stable=True).int()


def _int4(weight: Weight) -> TritonPacked | None:
    order = _order(weight)
    if isinstance(order, bool):
        return None
    scales, zeros = weight.tensors["scales"], weight.tensors.get("zeros")
    middle = torch.full_like(scales, 8.0) if zeros is None else zeros
    codes = _nibbles(weight.tensors["codes"], weight.shape[1])
    return _four("int4", codes, scales, middle, OFFSET_ZERO, order)


def _eight(kind: str, codes: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor | None) -> TritonPacked | None:
    unit = _unit(codes.shape[1], scales.shape[1], 64)
    if unit is None:
        return None
    codes = codes if order is None else codes[:, order.long()]
    offsets = None if zeros is None else _short(zeros)
    offset = NO_OFFSET if zeros is None else OFFSET_ZERO
    shape = (codes.shape[0], codes.shape[1])
    return TritonPacked(kind, codes.contiguous(), shape, _short(scales), offsets, offset, unit, order)


def _int8(weight: Weight) -> TritonPacked | None:
    order = _order(weight)
    if isinstance(order, bool):
        return None
    return _eight("int8", weight.tensors["codes"], weight.tensors["scales"], weight.tensors.get("zeros"), order)


def _fp8(weight: Weight) -> TritonPacked | None:
    order = _order(weight)
    if isinstance(order, bool):
        return None
    codes = weight.tensors["codes"].view(torch.uint8)
    codes = torch.where(codes == 0x80, torch.zeros_like(codes), codes)
    return _eight("fp8", codes, weight.tensors["scales"].float(), None, order)


def _fp4(weight: Weight) -> TritonPacked | None:
    scales = weight.tensors["scales"]
    if weight.scheme == "mxfp4":
        wide = torch.ldexp(torch.ones(scales.shape, device=scales.device), scales.int() - 127)
    else:
        wide = scales.float() / weight.tensors["global_scale"]
    return _four("fp4", _nibbles(weight.tensors["codes"], weight.shape[1]), wide)


def _gguf(size: int) -> Callable[[Weight], TritonPacked | None]:
    """Blocks of 32: `size` bytes of float16 scale (and addend), then the codes."""

    def read(weight: Weight) -> TritonPacked | None:
        rows, columns = weight.shape
        blocks = weight.tensors["blocks"].reshape(rows, columns // 32, -1)
        halves = blocks[:, :, :size].contiguous().view(torch.float16).float()
        rest = blocks[:, :, size:].contiguous()
        if weight.scheme == "gguf:q8_0":
            return _eight("int8", rest.view(torch.int8).flatten(1), halves[..., 0], None, None)
        codes = torch.cat([rest & 15, rest >> 4], -1).flatten(1)
        if weight.scheme == "gguf:q4_1":
            return _four("int4", codes, halves[..., 0], halves[..., 1], OFFSET_ADDEND)
        return _four("int4", codes, halves[..., 0], torch.full_like(halves[..., 0], 8.0), OFFSET_ZERO)

    return read


def _dense(weight: Weight) -> TritonPacked:
    return TritonPacked("dense", weight.tensors["weight"].contiguous(), weight.shape)


_READERS: Mapping[str, Callable[[Weight], TritonPacked | None]] = MappingProxyType(
    {
        "float32": _dense,
        "bfloat16": _dense,
        "float16": _dense,
        "int4": _int4,
        "int8": _int8,
        "fp8_e4m3": _fp8,
        "mxfp4": _fp4,
        "nvfp4": _fp4,
        "gguf:q4_0": _gguf(2),
        "gguf:q4_1": _gguf(4),
        "gguf:q8_0": _gguf(2),
    }
)
