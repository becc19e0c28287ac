"""Write a tiny transformers model as llm-compressor, GPTQModel and AutoAWQ would: rounded to nearest, packed by the
layouts' definitions.

Nothing of the product is used, so that its readers are held to something else than themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Tensor = torch.Tensor
Packed = tuple[dict[str, Tensor], Tensor]
"""A module's tensors by what follows its name, and the float32 matrix that they stand for."""
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Variant:
    """One way to store a matrix: the checkpoint's `quantization_config` and what packs a float32 [N, K]."""

    config: dict[str, Any]
    pack: Callable[[Tensor], Packed]
    scheme: str
    """What `Weight.scheme` should say."""
    activation: str | None = None


@dataclass
class Written:
    """What a checkpoint stands for."""

    path: Path
    matrices: dict[str, Tensor] = field(default_factory=dict)


def write(model: Any, variant: Variant, directory: Path) -> Written:
    """Matrices of layers packed; embedding, head and norms in bfloat16."""
    directory.mkdir(exist_ok=True)
    written, tensors = Written(directory), dict[str, Tensor]()
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and tensor.dim() == 2 and ".layers." in name:
            packed, written.matrices[module] = variant.pack(tensor.float())
            tensors |= {f"{module}.{suffix}": value.contiguous() for suffix, value in packed.items()}
        else:
            tensors[name] = tensor.bfloat16()
    save_file(tensors, directory / "model.safetensors")
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": variant.config}
    (directory / "config.json").write_text(json.dumps(config, default=str))
    return written


def words(codes: Tensor, bits: int) -> Tensor:
    """int32 [R, ceil(C bits / 32)] of codes [R, C]: each row one little-endian run of bits."""
    run = ((codes.long().unsqueeze(-1) >> torch.arange(bits)) & 1).flatten(1).to(torch.uint8).numpy()
    run = np.pad(run, ((0, 0), (0, -run.shape[1] % 32)))
    return torch.from_numpy(np.packbits(run, axis=1, bitorder="little").view(np.int32).copy())


@dataclass(frozen=True)
class Grid:
    """Codes [N, K] of `bits`, scales and zero points [N, G], and every column's group [K]."""

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    index: Tensor

    @property
    def values(self) -> Tensor:
        return (self.codes - self.zeros[:, self.index]).float() * self.scales.float()[:, self.index]


def grid(
    matrix: Tensor, bits: int, group: int, symmetric: bool, shuffled: bool = False, dtype: Any = torch.float16
) -> Grid:
    """Round to nearest; a group of -1 is the whole row. `shuffled`: columns belong to groups in a random order."""
    rows, columns = matrix.shape
    size = columns if group == -1 else group
    index = torch.arange(columns) // size
    if shuffled:
        index = index[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    pieces = matrix[:, index.argsort(stable=True)].view(rows, -1, size)
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    if symmetric:
        scales = (pieces.abs().amax(-1) / (middle - 0.5)).clamp(min=1e-6).to(dtype)
        zeros = torch.full(scales.shape, middle)
    else:
        low, high = pieces.amin(-1).clamp(max=0), pieces.amax(-1).clamp(min=0)
        scales = ((high - low) / top).clamp(min=1e-6).to(dtype)
        zeros = (-low / scales.float()).round().long().clamp(0, top)
    codes = (matrix / scales.float()[:, index]).round().long() + zeros[:, index]
    return Grid(bits, codes.clamp(0, top), scales, zeros, index)


def gptq(bits: int, group: int, symmetric: bool, desc_act: bool = False, layout: str = "gptq") -> Variant:
    def pack(matrix: Tensor) -> Packed:
        made = grid(matrix, bits, group, symmetric, desc_act)
        zeros = made.zeros - 1 if layout == "gptq" else made.zeros
        return {
            "qweight": words(made.codes, bits).T,
            "qzeros": words(zeros.T % (1 << bits), bits),
            "scales": made.scales.T,
            "g_idx": made.index.int(),
        }, made.values

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": desc_act}
    return Variant({**config, "checkpoint_format": layout, "lm_head": False}, pack, "int8" if bits == 8 else "int4")


def awq(group: int, zero_point: bool = True, **more: Any) -> Variant:
    def interleaved(codes: Tensor) -> Tensor:
        """Codes [R, N] as int32 [R, N / 8]."""
        return words(codes.view(len(codes), -1, 8)[:, :, list(_AWQ_ORDER)].flatten(1), 4)

    def pack(matrix: Tensor) -> Packed:
        made = grid(matrix, 4, group, not zero_point)
        tensors = {"qweight": interleaved(made.codes.T.contiguous()), "scales": made.scales.T}
        return {**tensors, "qzeros": interleaved(made.zeros.T.contiguous())}, made.values

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": zero_point, "version": "gemm"}
    return Variant({**config, "modules_to_not_convert": ["lm_head"], **more}, pack, "int4")


def _tensors_config(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": layout}
    settings = {"config_groups": {"group_0": group}, "ignore": ["lm_head"], "format": layout}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", **settings}


def packed_int(bits: int, group: int, symmetric: bool, actorder: str | None = None) -> Variant:
    """`pack-quantized`; a group of -1 is a scale a row. `actorder` "group" is that of older versions, with indices."""

    def pack(matrix: Tensor) -> Packed:
        made = grid(matrix, bits, group, symmetric, actorder == "group", torch.bfloat16)
        tensors = {"weight_packed": words(made.codes, bits), "weight_scale": made.scales}
        tensors["weight_shape"] = torch.tensor(matrix.shape)
        if not symmetric:
            tensors["weight_zero_point"] = words(made.zeros.T, bits).T
        if actorder == "group":
            tensors["weight_g_idx"] = made.index.int()
        return tensors, made.values

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": actorder}
    weights |= {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return Variant(_tensors_config("pack-quantized", weights, None), pack, "int4" if bits <= 4 else "int8")


def plain_int8(inputs: dict[str, Any] | None, activation: str | None, symmetric: bool = True) -> Variant:
    """`int-quantized`: a code a byte, a scale a row."""

    def pack(matrix: Tensor) -> Packed:
        made = grid(matrix, 8, -1, symmetric, dtype=torch.bfloat16)
        tensors = {"weight": (made.codes - 128).to(torch.int8), "weight_scale": made.scales}
        if not symmetric:
            tensors["weight_zero_point"] = (made.zeros - 128).to(torch.int8)
        if activation == "int8_tensor":
            tensors["input_scale"] = torch.tensor([0.03])
        return tensors, made.values

    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": symmetric}
    return Variant(_tensors_config("int-quantized", weights, inputs), pack, "int8", activation)


def fp8(strategy: str, inputs: dict[str, Any] | None, activation: str | None, block: int = 128) -> Variant:
    """`float-quantized`: E4M3, a scale a tensor, a row or a tile."""

    def pack(matrix: Tensor) -> Packed:
        rows, columns = matrix.shape
        size = {"tensor": (rows, columns), "channel": (1, columns), "block": (block, block)}[strategy]
        high, wide = -(-rows // size[0]), -(-columns // size[1])
        padded = torch.zeros(high * size[0], wide * size[1])
        padded[:rows, :columns] = matrix
        scales = padded.view(high, size[0], wide, size[1]).abs().amax((1, 3)) / 448
        full = scales.repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1], 1)[:, :columns]
        codes = (matrix / full).to(torch.float8_e4m3fn)
        tensors = {"weight": codes, "weight_scale": scales.flatten() if strategy == "tensor" else scales}
        if activation == "fp8_tensor":
            tensors["input_scale"] = torch.tensor([0.01])
        return tensors, codes.float() * full

    weights: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": strategy}
    if strategy == "block":
        weights["block_structure"] = [block, block]
    return Variant(_tensors_config("float-quantized", weights, inputs), pack, "fp8_e4m3", activation)


def _e2m1(values: Tensor) -> Tensor:
    """Codes of the nearest E2M1 values."""
    return (values.unsqueeze(-1) - _E2M1).abs().argmin(-1)


def _nibbles(codes: Tensor) -> Tensor:
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


def fp4(kind: str, inputs: dict[str, Any] | None, activation: str | None) -> Variant:
    """`mxfp4` (powers of two for 32 columns) or `nvfp4` (E4M3 scales for 16, under one for the tensor)."""
    size = 32 if kind == "mxfp4" else 16

    def pack(matrix: Tensor) -> Packed:
        largest = matrix.view(len(matrix), -1, size).abs().amax(-1).clamp(min=1e-6)
        if kind == "mxfp4":
            exponents = (largest / 6).log2().ceil()
            tensors = {"weight_scale": (exponents + 127).to(torch.uint8)}
            scales = exponents.exp2()
        else:
            whole = (448 * 6 / largest.max()).reshape(1)
            local = (whole * largest / 6).to(torch.float8_e4m3fn)
            tensors = {"weight_scale": local, "weight_global_scale": whole}
            scales = local.float() / whole
        if activation == "nvfp4":
            tensors["input_global_scale"] = torch.tensor([600.0])
        full = scales.repeat_interleave(size, 1)
        codes = _e2m1(matrix / full)
        return {"weight_packed": _nibbles(codes), **tensors}, _E2M1[codes] * full

    weights = {"num_bits": 4, "type": "float", "group_size": size}
    weights["strategy"] = "group" if kind == "mxfp4" else "tensor_group"
    return Variant(_tensors_config(f"{kind}-pack-quantized", weights, inputs), pack, kind, activation)


def mxfp8(inputs: dict[str, Any] | None = None) -> Variant:
    """E4M3 under powers of two for 32 columns."""

    def pack(matrix: Tensor) -> Packed:
        exponents = (matrix.view(len(matrix), -1, 32).abs().amax(-1).clamp(min=1e-6) / 448).log2().ceil()
        full = exponents.exp2().repeat_interleave(32, 1)
        codes = (matrix / full).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": (exponents + 127).to(torch.uint8)}, codes.float() * full

    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    return Variant(_tensors_config("mxfp8-quantized", weights, inputs), pack, "fp8_e4m3")


def inputs(bits: int, kind: str, strategy: str, dynamic: bool | str = True, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "dynamic": dynamic, **more}


INT8_TOKEN = inputs(8, "int", "token")
FP8_TOKEN = inputs(8, "float", "token")
MXFP4 = inputs(4, "float", "group", group_size=32)
NVFP4 = inputs(4, "float", "tensor_group", "local", group_size=16)


def variants() -> dict[str, Variant]:
    """Every variant that the tools write and that loads."""
    found: dict[str, Variant] = {}
    for group in (-1, 32, 64, 128):
        for symmetric in (True, False):
            shape = f"{'row' if group == -1 else f'g{group}'}-{'sym' if symmetric else 'asym'}"
            for bits in (2, 3, 4, 5, 6, 7, 8) if group == 64 else (2, 4, 8):
                found[f"ct-w{bits}a16-{shape}"] = packed_int(bits, group, symmetric)
            for bits in (2, 3, 4, 8):
                found[f"gptq-{bits}-{shape}"] = gptq(bits, group, symmetric)
                acting = group in (32, 128)
                found[f"gptq2-{bits}-{shape}"] = gptq(bits, group, symmetric, acting, "gptq_v2")
                if acting:
                    found[f"gptq-{bits}-{shape}-act"] = gptq(bits, group, symmetric, True)
            if group != -1:
                found[f"ct-w4a16-{shape}-act"] = packed_int(4, group, symmetric, "group")
                found[f"ct-w8a16-{shape}-act"] = packed_int(8, group, symmetric, "group")
        found[f"awq-g{group}"] = awq(group)
        found[f"awq-g{group}-sym"] = awq(group, False)
    for symmetric in (True, False):
        shape = "sym" if symmetric else "asym"
        found[f"ct-int8-{shape}"] = plain_int8(None, None, symmetric)
        found[f"ct-w8a8-{shape}"] = plain_int8(INT8_TOKEN, "int8_token", symmetric)
        asymmetric = {**INT8_TOKEN, "symmetric": False}
        found[f"ct-w8a8-{shape}-asym"] = plain_int8(asymmetric, "int8_token_asymmetric", symmetric)
        found[f"ct-w8a8-{shape}-static"] = plain_int8(inputs(8, "int", "tensor", False), "int8_tensor", symmetric)
    for strategy in ("tensor", "channel", "block"):
        found[f"ct-fp8-{strategy}"] = fp8(strategy, None, None)
        found[f"ct-fp8-{strategy}-dynamic"] = fp8(strategy, FP8_TOKEN, "fp8_token")
        found[f"ct-fp8-{strategy}-static"] = fp8(strategy, inputs(8, "float", "tensor", False), "fp8_tensor")
    found["ct-fp8-tensor-batch"] = fp8("tensor", inputs(8, "float", "tensor"), "fp8_token")
    found["ct-w8a8-batch"] = plain_int8(inputs(8, "int", "tensor"), "int8_token")
    asymmetric = {**inputs(8, "int", "tensor"), "symmetric": False}
    found["ct-w8a8-batch-asym"] = plain_int8(asymmetric, "int8_token_asymmetric")
    found["ct-fp8-block-group"] = fp8("block", inputs(8, "float", "group", group_size=128), "fp8_group128")
    found["ct-mxfp8a16"] = mxfp8()
    found["ct-mxfp4"], found["ct-mxfp4a16"] = fp4("mxfp4", MXFP4, "mxfp4"), fp4("mxfp4", None, None)
    found["ct-nvfp4"], found["ct-nvfp4a16"] = fp4("nvfp4", NVFP4, "nvfp4"), fp4("nvfp4", None, None)
    return found
