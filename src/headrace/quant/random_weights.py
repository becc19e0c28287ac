"""Random weights in every quantized format, for the operators' input generators: see `kernels.random.Weights`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch

from headrace.kernels import random
from headrace.kernels.weight import Weight
from headrace.quant import containers
from headrace.quant.bits import pack_nibbles
from headrace.quant.gguf import GGUF_TYPES, BlockType, gguf_weight
from headrace.quant.weights import place

__all__ = ["QuantizedForm", "random_form"]

Rng = np.random.Generator
Tensor = torch.Tensor
_LEAST_ROWS = 16
"""So that a result has enough values for a meaningful mean square error."""
_BLOCKS = {f"gguf:{kind.name}": kind for kind in GGUF_TYPES.values()}
_SCALES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
        "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": (),
    }
)  # fmt: skip
"""Byte offsets of a GGUF block's float16 scale and minimum (ggml's `ggml-common.h`)."""
_MIDDLE = {"q4_1": -7.5, "q5_1": -15.5, "q2_k": 1.5, "q4_k": 7.5, "q5_k": 15.5}
"""The minimum as a multiple of the scale, so that weights are centred on zero; the `k` formats subtract it."""
_GROUPS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "int4": (0, 8, 16, 32, 64, 128),
        "int8": (0, 8, 16, 32, 64, 128),
        "fp8_e4m3": (0, 32, 128),
        "mxfp4": (32,),
        "nvfp4": (16,),
    }
)
"""Columns that share a scale; 0: all columns of a row."""
_INPUTS: Mapping[str, tuple[str | None, ...]] = MappingProxyType(
    {
        "int4": (None, None, "int8_token"),
        "int8": (None, "int8_token", "int8_token_asymmetric", "int8_tensor"),
        "fp8_e4m3": (None, "fp8_token", "fp8_tensor"),
        "mxfp4": (None, "mxfp4"),
        "nvfp4": (None, "nvfp4"),
    }
)
"""The roundings of inputs that checkpoints of the format require."""
_SPREAD = {"int4": 4.6, "int8": 74.0, "fp8": 60.0, "fp4": 2.7}
"""Standard deviation of random codes."""


@dataclass(frozen=True, slots=True)
class QuantizedForm:
    """One variant of a format, shared by all matrices of a call; a `kernels.random.Weights`."""

    format: str
    group: int = 0
    zeros: bool = False
    shuffled: bool = False
    """Columns belong to groups in any order (act-order)."""
    exact_half: bool = False
    """Scales are exact in float16."""
    activation: str | None = None

    def rows(self, wanted: int) -> int:
        return max(wanted, _LEAST_ROWS)

    def columns(self, wanted: int) -> int:
        size = _BLOCKS[self.format].elements if self.format in _BLOCKS else max(self.group, 1)
        return -(-wanted // size) * size

    def __call__(self, rng: Rng, rows: int, columns: int, device: torch.device, dtype: str, bias: bool) -> Weight:
        """A random weight. `dtype` has no effect: it concerns plain matrices only."""
        if self.format in _BLOCKS:
            weight = _gguf(rng, _BLOCKS[self.format], rows, columns)
        elif self.format in ("int4", "int8"):
            weight = self._integers(rng, rows, columns)
        elif self.format == "fp8_e4m3":
            weight = self._fp8(rng, rows, columns)
        else:
            weight = _fp4(rng, self.format, rows, columns)
        offset = random.normal(rng, rows, device=torch.device("cpu")) if bias else None
        weight = replace(weight, bias=offset, activation=self.activation, name=self.format)
        if self.activation is not None:
            weight.tensors |= _static_scales(self.activation)
        return place(weight, lambda tensor: tensor.to(device))

    def _integers(self, rng: Rng, rows: int, columns: int) -> Weight:
        bits, groups = int(self.format[3:]), columns // (self.group or columns)
        order = torch.from_numpy(rng.permutation(columns).astype(np.int32) // self.group) if self.shuffled else None
        zeros = _bytes(rng, 1 << bits, rows, groups) if self.zeros else None
        scales = self._scales(rng, rows, groups, columns, _SPREAD[self.format])
        return containers.int_weight(_bytes(rng, 1 << bits, rows, columns), bits, scales, zeros, order, self.format)

    def _fp8(self, rng: Rng, rows: int, columns: int) -> Weight:
        values = random.normal(rng, rows, columns, device=torch.device("cpu")) * _SPREAD["fp8"]
        codes = values.clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = self._scales(rng, rows, columns // (self.group or columns), columns, _SPREAD["fp8"])
        return containers.fp8_weight(codes, scales, None, self.format)

    def _scales(self, rng: Rng, rows: int, groups: int, columns: int, spread: float) -> Tensor:
        values = rng.uniform(0.5, 1.5, (rows, groups)) / (spread * columns**0.5)
        scales = torch.from_numpy(values.astype(np.float32))
        return scales.half().float() if self.exact_half else scales


def random_form(rng: Rng, form: str) -> QuantizedForm:
    """A random variant of a format in `types.QUANT_FORMATS`: groups, zero points, column order, rounding of inputs."""
    if form in _BLOCKS:
        return QuantizedForm(form)
    group = int(rng.choice(_GROUPS[form]))
    activation = _INPUTS[form][int(rng.integers(len(_INPUTS[form])))]
    if form == "fp8_e4m3" and group == 128 and rng.integers(2):
        activation = "fp8_group128"
    integers = form in ("int4", "int8")
    zeros, shuffled = (integers and bool(rng.integers(2)) for _ in range(2))
    return QuantizedForm(form, group, zeros, shuffled and group > 0, bool(rng.integers(2)), activation)


def _bytes(rng: Rng, end: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng.integers(0, end, shape, dtype=np.uint8))


def _static_scales(activation: str) -> dict[str, Tensor]:
    """Static input scales that fit standard normal inputs."""
    found = {
        "int8_tensor": ("input_scale", 0.03),
        "fp8_tensor": ("input_scale", 0.01),
        "nvfp4": ("input_global_scale", 300.0),
    }
    return {name: torch.tensor([value]) for key, (name, value) in found.items() if key == activation}


def _exponents(rng: Rng, rows: int, groups: int, columns: int) -> Tensor:
    """E8M0 scales, each one of three neighbouring values."""
    return _bytes(rng, 3, rows, groups) + (126 - round(math.log2(_SPREAD["fp4"] * columns**0.5)))


def _fp4(rng: Rng, form: str, rows: int, columns: int) -> Weight:
    codes = pack_nibbles(_bytes(rng, 16, rows, columns))
    if form == "mxfp4":
        return containers.mxfp4_weight(codes, _exponents(rng, rows, columns // 32, columns), form)
    local = torch.from_numpy(rng.uniform(1, 400, (rows, columns // 16)).astype(np.float32)).to(torch.float8_e4m3fn)
    return containers.nvfp4_weight(codes, local, torch.tensor([200 * _SPREAD["fp4"] * columns**0.5]), form)


def _gguf(rng: Rng, kind: BlockType, rows: int, columns: int) -> Weight:
    count = columns // kind.elements
    blocks = _bytes(rng, 256, rows, count, kind.bytes)
    if kind.name == "mxfp4":
        blocks[:, :, 0] = _exponents(rng, rows, count, columns)
    values = rng.uniform(0.5, 1.5, (2, rows, count, 1)).astype(np.float32)
    values[1] = (values[1] + 1) / 2 * values[0] * _MIDDLE.get(kind.name, 0.0)
    halves = dict(zip(_SCALES[kind.name], torch.from_numpy(values), strict=False))
    _write_halves(blocks, halves, 1.0)
    spread = float(gguf_weight(kind, blocks.flatten(1), columns).dequantize().std())
    _write_halves(blocks, halves, 1 / (spread * columns**0.5))
    return gguf_weight(kind, blocks.flatten(1), columns)


def _write_halves(blocks: Tensor, halves: Mapping[int, Tensor], factor: float) -> None:
    for at, value in halves.items():
        blocks[:, :, at : at + 2] = (value * factor).half().view(torch.uint8)
