"""Random weights in every number format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from headrace.kernels.weight import Weight
from headrace.quant import containers
from headrace.quant.bits import pack_nibbles
from headrace.quant.gguf import GGUF_TYPES, BlockType, gguf_weight
from headrace.quant.weights import dense

Rng = np.random.Generator
Tensor = torch.Tensor
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": (),
}  # fmt: skip
"""Byte offsets of the float16 scales of a block."""


def normal(rng: Rng, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def codes(rng: Rng, bits: int, rows: int, columns: int) -> Tensor:
    return torch.from_numpy(rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8))


def scales(rng: Rng, rows: int, groups: int, exact_half: bool) -> Tensor:
    values = torch.from_numpy(rng.uniform(0.001, 0.01, (rows, groups)).astype(np.float32))
    return values.half().float() if exact_half else values


def gguf(rng: Rng, kind: BlockType, rows: int, columns: int) -> Weight:
    columns = -(-columns // kind.elements) * kind.elements
    blocks = torch.from_numpy(rng.integers(0, 256, (rows, columns // kind.elements, kind.bytes), dtype=np.uint8))
    for at in HALVES[kind.name]:
        value = scales(rng, rows, columns // kind.elements, False).half()
        blocks[:, :, at : at + 2] = value.unsqueeze(-1).view(torch.uint8)
    if kind.name == "mxfp4":
        blocks[:, :, 0] = 112 + blocks[:, :, 0] % 8
    return gguf_weight(kind, blocks.flatten(1), columns)


def _dense(rng: Rng, dtype: torch.dtype, rows: int, columns: int) -> Weight:
    return dense((normal(rng, rows, columns) / columns**0.5).to(dtype))


def integers(rng: Rng, bits: int, group: int, zeros: bool, shuffled: bool, rows: int, columns: int) -> Weight:
    """`group` 0: one scale a row."""
    columns = columns if group == 0 else -(-columns // group) * group
    groups = 1 if group == 0 else columns // group
    order = None
    if shuffled:
        order = torch.from_numpy(rng.permutation(np.arange(columns, dtype=np.int32) // group))
    zero = codes(rng, bits, rows, groups) if zeros else None
    scale = scales(rng, rows, groups, bool(rng.integers(2)))
    return containers.int_weight(codes(rng, bits, rows, columns), bits, scale, zero, order, "w")


def _fp8(rng: Rng, groups: int, rows: int, columns: int) -> Weight:
    columns = -(-columns // groups) * groups
    values = normal(rng, rows, columns).clamp(-3, 3).to(torch.float8_e4m3fn)
    return containers.fp8_weight(values, scales(rng, rows, groups, False), None, "w")


def _fp8_wide(rng: Rng, rows: int, columns: int) -> Weight:
    """Blocks of 128 columns; every code there is."""
    groups = -(-columns // 128)
    values = codes(rng, 8, rows, groups * 128)
    values[(values & 127) == 127] = 0  # not a number
    return containers.fp8_weight(values.view(torch.float8_e4m3fn), scales(rng, rows, groups, False), None, "w")


def _mxfp4(rng: Rng, rows: int, columns: int) -> Weight:
    columns = -(-columns // 32) * 32
    exponents = torch.from_numpy(rng.integers(115, 125, (rows, columns // 32), dtype=np.uint8))
    return containers.mxfp4_weight(pack_nibbles(codes(rng, 4, rows, columns)), exponents, "w")


def _nvfp4(rng: Rng, rows: int, columns: int) -> Weight:
    columns = -(-columns // 16) * 16
    local = torch.from_numpy(rng.uniform(1, 400, (rows, columns // 16)).astype(np.float32)).to(torch.float8_e4m3fn)
    packed = pack_nibbles(codes(rng, 4, rows, columns))
    return containers.nvfp4_weight(packed, local, torch.tensor([5000.0]), "w")


Maker = Callable[[Rng, int, int], Weight]
"""(rng, rows, columns) → a weight of that many rows and of that many columns or the next that its blocks allow."""


def makers() -> dict[str, Maker]:
    found: dict[str, Maker] = {}
    for kind in GGUF_TYPES.values():
        found[kind.name] = lambda rng, rows, columns, kind=kind: gguf(rng, kind, rows, columns)  # type: ignore[misc]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found[str(dtype).removeprefix("torch.")] = lambda rng, rows, columns, dtype=dtype: _dense(
            rng, dtype, rows, columns
        )  # type: ignore[misc]
    for bits in (4, 8):
        for group in (0, 16, 32, 64, 128):
            for zeros in (False, True):
                name = f"int{bits}-g{group}" + ("-zeros" if zeros else "")
                found[name] = partial(integers, bits=bits, group=group, zeros=zeros, shuffled=False)
        found[f"int{bits}-act-order"] = partial(integers, bits=bits, group=32, zeros=True, shuffled=True)
    for bits in (2, 3):
        found[f"int{bits}-g32"] = partial(integers, bits=bits, group=32, zeros=False, shuffled=False)
    found |= {"fp8-row": partial(_fp8, groups=1), "fp8-blocks": partial(_fp8, groups=3), "fp8-wide-blocks": _fp8_wide}
    return found | {"mxfp4-container": _mxfp4, "nvfp4": _nvfp4}


def _call(maker: Maker, rng: Rng, rows: int, columns: int) -> Weight:
    return maker(rng, rows=rows, columns=columns)  # type: ignore[call-arg]


MAKERS = {name: partial(_call, maker) for name, maker in makers().items()}
