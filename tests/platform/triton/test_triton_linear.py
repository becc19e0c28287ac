"""Products with every packed form, against the reference on the same weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from triton_support import BY_NAME, CPU, operator, outputs, rng, run

from headrace.conformance.operators_tier import nmse
from headrace.errors import CheckpointError
from headrace.kernels import random
from headrace.kernels.weight import Weight
from headrace.quant.awq import AWQ
from headrace.quant.containers import fp8_weight, int4_weight, int8_weight, int_weight, mxfp4_weight, nvfp4_weight
from headrace.quant.gguf import GGUF_TYPES, gguf_weight
from headrace.quant.gptq import GPTQ
from headrace.quant.weights import stack

Tensor = torch.Tensor
LINEAR = BY_NAME["linear"]
LIMITS = {"float32": 1e-9, "bfloat16": 1e-4, "float16": 1e-5}


def _bytes(seed: int, *shape: int, high: int = 256) -> Tensor:
    return torch.from_numpy(rng(seed).integers(0, high, shape, dtype=np.uint8))


def _scales(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng(seed).uniform(0.005, 0.02, shape).astype(np.float32)).half().float()


def _int4(group: int, zeros: bool = False, shuffled: bool = False) -> Weight:
    rows, columns = 37, 256
    groups = columns // group
    index = torch.from_numpy(rng(5).permutation(columns) // group).int() if shuffled else None
    zero = _bytes(2, rows, groups, high=16) if zeros else None
    return int4_weight(_bytes(0, rows, columns // 2), columns, _scales(1, rows, groups), zero, index, "w")


def _int8(group: int, zeros: bool = False) -> Weight:
    zero = _bytes(3, 37, 192 // group).view(torch.int8) if zeros else None
    return int8_weight(_bytes(0, 37, 192).view(torch.int8), _scales(1, 37, 192 // group), zero, None, "w")


def _fp8(columns: int, groups: int) -> Weight:
    codes = torch.from_numpy(rng(0).standard_normal((37, columns)).astype(np.float32) * 100).to(torch.float8_e4m3fn)
    codes[0, :3] = torch.tensor([-0.0, 2.0**-9, 448.0]).to(torch.float8_e4m3fn)
    return fp8_weight(codes, _scales(1, 37, groups), None, "w")


def _gguf(name: str) -> Weight:
    kind = next(kind for kind in GGUF_TYPES.values() if kind.name == name)
    blocks = _bytes(0, 37 * (256 // kind.elements), kind.bytes)
    size = 4 if name in ("q4_1", "q4_k") else 2
    blocks[:, :size] = _scales(1, len(blocks), size // 2).half().view(torch.uint8)
    return gguf_weight(kind, blocks.view(37, -1), 256, "w")


class _Reader:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> Tensor:
        return self.tensors[name]

    def error(self, message: str, name: str) -> CheckpointError:
        return CheckpointError(message, None, name)


def _words(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng(seed).integers(-(2**31), 2**31, shape).astype(np.int32))


def _awq() -> Weight:
    tensors = {"m.qweight": _words(0, 128, 5), "m.qzeros": _words(1, 2, 5), "m.scales": _scales(2, 2, 40).half()}
    return AWQ({"bits": 4}).load("m", (40, 128), _Reader(tensors))


def _gptq(bits: int) -> Weight:
    tensors = {
        "m.qweight": _words(0, 128 * bits // 32, 32), "m.qzeros": _words(1, 4, bits),
        "m.scales": _scales(2, 4, 32).half(), "m.g_idx": torch.from_numpy(rng(3).permutation(128) // 32).int(),
    }  # fmt: skip
    return GPTQ({"bits": bits}).load("m", (32, 128), _Reader(tensors))


WEIGHTS: dict[str, Any] = {
    "int4_32": lambda: _int4(32), "int4_128_zeros": lambda: _int4(128, zeros=True), "int4_channel": lambda: _int4(256),
    "int4_16": lambda: _int4(16, zeros=True), "int4_act_order": lambda: _int4(64, True, True),
    "int4_odd_group": lambda: _int4(8),
    "int3": lambda: int_weight(_bytes(0, 9, 70, high=8), 3, _scales(1, 9, 1), None, None, "w"),
    "int8_channel": lambda: _int8(192), "int8_64_zeros": lambda: _int8(64, True), "int8_32": lambda: _int8(32),
    "fp8_channel": lambda: _fp8(200, 1), "fp8_block": lambda: _fp8(256, 2), "q4_0": lambda: _gguf("q4_0"),
    "q4_1": lambda: _gguf("q4_1"), "q8_0": lambda: _gguf("q8_0"), "q4_k": lambda: _gguf("q4_k"),
    "mxfp4": lambda: mxfp4_weight(_bytes(0, 37, 64), _bytes(1, 37, 4, high=20) + 117, "w"), "awq": _awq,
    "nvfp4": lambda: nvfp4_weight(
        _bytes(0, 37, 64), _scales(1, 37, 8).mul(1e4).to(torch.float8_e4m3fn), torch.tensor(40.0), "w"
    ),
    "gptq4": lambda: _gptq(4), "gptq8": lambda: _gptq(8), "gptq2": lambda: _gptq(2),
}  # fmt: skip


def _inputs(weight: Weight, dtype: str, tokens: int = 3) -> Tensor:
    return random.normal(rng(9), tokens, weight.shape[1], device=CPU, dtype=dtype)


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_form_of_weight(name: str) -> None:
    weight = WEIGHTS[name]()
    for dtype, limit in LIMITS.items():
        run(LINEAR, {"x": _inputs(weight, dtype), "weight": replace(weight, prepared={})}, limit, dtype=dtype)


_ROUNDED = [
    ("int8_token", "int8_channel"), ("int8_token_asymmetric", "int8_channel"), ("int8_tensor", "int8_channel"),
    ("int8_token", "int8_64_zeros"), ("int8_token", "int4_32"), ("int8_token", "int8_32"), ("fp8_token", "fp8_channel"),
    ("fp8_tensor", "fp8_channel"), ("fp8_group128", "fp8_block"), ("fp8_group128", "fp8_channel"),
    ("fp8_token", "int4_32"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"),
]  # fmt: skip


_UNITS = [
    (rule, name, fp8) for rule, name in _ROUNDED for fp8 in (("", "ocp", "fnuz") if rule.startswith("fp8") else ("",))
]
"""With each E4M3 variant of matrix units, if inputs are E4M3."""


@pytest.mark.parametrize(("activation", "name", "fp8"), _UNITS)
def test_inputs_are_rounded_as_the_scheme_requires(activation: str, name: str, fp8: str) -> None:
    weight = replace(WEIGHTS[name](), activation=activation)
    weight.tensors |= {"input_scale": torch.tensor([0.02]), "input_global_scale": torch.tensor([300.0])}
    for dtype, limit in LIMITS.items():
        x = _inputs(weight, dtype)
        x[1] = 0
        run(LINEAR, {"x": x, "weight": replace(weight, prepared={})}, limit, dtype=dtype, fp8=fp8)


@pytest.mark.parametrize("names", [("q4_0", "q4_0"), ("q4_0", "q4_1"), ("int8_channel", "int8_channel")])
def test_a_stack_merges_neighbours_of_one_form(names: tuple[str, ...]) -> None:
    from headrace.kernels.linear.triton_pack import KEY

    parts = [WEIGHTS[name]() for name in names]
    bias = random.normal(rng(1), sum(part.shape[0] for part in parts), device=CPU)
    weight = replace(stack(parts), bias=bias)
    run(LINEAR, {"x": _inputs(weight, "float32"), "weight": weight}, 1e-9)
    pack = operator("linear").pack
    pack(weight)
    assert len(weight.prepared[KEY]) == len(set(names))


def test_pack_is_done_once() -> None:
    from headrace.kernels.linear.triton_pack import KEY

    weight = WEIGHTS["q4_0"]()
    operator("linear").pack(weight)
    first = weight.prepared[KEY]
    operator("logits").pack(weight)
    operator("linear")(_inputs(weight, "float32"), weight)
    assert weight.prepared[KEY] is first


@pytest.mark.parametrize("name", ["dense", "q4_0", "fp8_channel"])
def test_a_row_is_the_same_alone_and_in_a_batch(name: str) -> None:
    weight = random.weight(rng(), 37, 200, CPU, "bfloat16", True) if name == "dense" else WEIGHTS[name]()
    x = _inputs(weight, "bfloat16", 70)
    linear = operator("linear", batch_invariant=True)
    whole = outputs(linear(x, weight))[0]
    for row in (0, 17, 69):
        assert torch.equal(linear(x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize("tokens", [0, 1, 33, 70])
def test_tiles_that_follow_the_batch(tokens: int) -> None:
    weight = WEIGHTS["q4_0"]()
    run(LINEAR, {"x": _inputs(weight, "bfloat16", tokens), "weight": weight}, 1e-4, batch_invariant=False)


@pytest.mark.parametrize("activation", [None, "int8_token"])
def test_logits_of_a_quantized_head(activation: str | None) -> None:
    spec = BY_NAME["logits"]
    arguments = next(a for a in (spec.generate(rng(s), CPU, "float32") for s in range(50)) if len(a["batch"].rows) > 2)
    head = replace(WEIGHTS["int8_channel"](), activation=activation)
    arguments |= {"head": head, "x": _inputs(head, "float32", len(arguments["x"])), "soft_cap": 2.0}
    got = operator("logits")(**arguments)
    want = spec.reference(**arguments)
    assert nmse(got.numpy(), want.numpy()) <= 1e-9
