"""A weight in a format that the device does not declare never reaches the device's operator."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import PlatformError
from headrace.kernels.linear.reference import linear
from headrace.kernels.registry import bind, binding, pack
from headrace.kernels.spec import OpSpec
from headrace.kernels.weight import Weight
from headrace.platforms.torch_device import TorchDevice
from headrace.quant.random_weights import QuantizedForm
from headrace.types import Capabilities

FORMATS = frozenset({"int8"})


class Own:
    """Correct for declared formats, wrong for all others."""

    tag = "own"

    def __init__(self) -> None:
        self.packed: list[str] = []

    def pack(self, weight: Weight) -> None:
        self.packed.append(weight.scheme)

    def __call__(self, x: torch.Tensor, weight: Weight) -> Any:
        return "own"


class Device(TorchDevice):
    def __init__(self, raw: bool = False) -> None:
        super().__init__(
            torch.device("cpu"), Capabilities(frozenset({"float32"}), frozenset({"float32"}), quant_formats=FORMATS)
        )
        self.own, self._raw = Own(), raw

    def op(self, spec: OpSpec) -> Any:
        return self.own if spec.name == "linear" else None

    def extension(self, kind: Any) -> Any:
        return None if self._raw else super().extension(kind)


def weight(form: str) -> Weight:
    rng = np.random.default_rng(3)
    return QuantizedForm(form)(rng, 32, 64, torch.device("cpu"), "float32", False)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 64, generator=torch.Generator().manual_seed(1))


def test_the_reference_is_used_and_logged_once(x: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    device = Device()
    ops, foreign = bind(device), weight("int4")
    for _ in range(2):
        pack(ops, "linear", foreign)
        assert torch.equal(ops.linear(x, foreign), linear(x, foreign))
    assert ops.linear(x=x, weight=weight("int8")) == "own"
    pack(ops, "linear", weight("int8"))
    assert device.own.packed == ["int8"]
    told = [record.getMessage() for record in caplog.records if "int4" in record.getMessage()]
    assert told == ["by reference: linear of int4 weights (not among the device's quant_formats)"]


def test_one_part_of_a_stack_is_enough(x: torch.Tensor) -> None:
    ops, parts = bind(Device()), (weight("int8"), weight("int4"))
    stack = Weight("stack", (64, 64), {}, lambda w: w.dequantize(), parts=parts)
    assert torch.equal(ops.linear(x, stack), linear(x, stack))
    assert ops.linear(x, Weight("stack", (32, 64), {}, lambda w: w.dequantize(), parts=parts[:1])) == "own"


def test_tensors_that_are_not_torchs_have_no_reference() -> None:
    ops, foreign = binding(Device(raw=True)), weight("int4")
    foreign.name = "layers.0.qkv"
    with pytest.raises(
        PlatformError, match=r"Device: linear of layers.0.qkv, stored as int4: .*quant_formats are int8"
    ):
        pack(ops, "linear", foreign)


def test_a_device_without_torch_has_every_operator_or_is_refused() -> None:
    with pytest.raises(
        PlatformError, match=r"Device has no form of resolve_tokens, embedding, .*sample, and no reference"
    ):
        bind(Device(raw=True))


def test_an_optional_operator_that_is_missing_is_refused_at_load() -> None:
    experts = weight("int8")
    experts.name = "layer 0 experts"
    with pytest.raises(
        PlatformError, match=r"no form of moe \(it would take layer 0 experts\), and no reference takes"
    ):
        pack(binding(Device(raw=True)), "moe", experts)
