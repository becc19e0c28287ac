"""The native device reports the operators that it lacks, and what serves instead."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from headrace.errors import PlatformError
from headrace.kernels.registry import OPTIONAL, binding
from headrace.platforms.cpu import native
from headrace.platforms.cpu.device import CpuDevice
from headrace.types import Bucket

pytestmark = pytest.mark.skipif(native.missing() is not None, reason="the native kernels are not built")


def test_optional_operators_without_a_kernel_give_their_reason() -> None:
    from headrace.platforms.cpu.native_device import NativeDevice

    device = NativeDevice()
    bound = binding(device)
    without = {spec.name for spec in OPTIONAL if device.op(spec) is None}
    assert without == {"mla", "gated_delta_rule", "mamba2_scan", "causal_conv1d"}
    assert all("HEADRACE_NATIVE=0 serves it" in bound.optional_reasons[name] for name in without)
    assert bound.optional_reasons["moe"] == "the device's own form"
    device.close()


def test_the_reason_is_true() -> None:
    from headrace.platforms.cpu.native_device import NativeDevice

    spec = next(spec for spec in OPTIONAL if spec.name == "causal_conv1d")
    given = spec.generate(np.random.default_rng(3), torch.device("cpu"), "float32")
    native_device, plain = NativeDevice(), CpuDevice()
    operators = {device: binding(device).causal_conv1d for device in (native_device, plain)}
    bucket = Bucket(8, 8, 8, 8)
    step = native_device.compile(lambda kv, inputs: (kv, {"y": operators[native_device](**given)}), bucket)
    with pytest.raises(PlatformError, match="a torch operator, not one of the device"):
        step(None, {"x": native_device.put(np.zeros(3))})
    _, outputs = plain.compile(lambda kv, inputs: (kv, {"y": operators[plain](**given)[0]}), bucket)(None, {})
    assert np.isfinite(plain.get(outputs["y"]).result()).all()
    native_device.close()
    plain.close()


@pytest.mark.parametrize("isa", ["amx", "v4bf16"])
def test_attention_multiplies_and_adds_where_dot_products_are_slow(isa: str) -> None:
    kernel = ctypes.CFUNCTYPE(None)
    found = {name: kernel(lambda: None) for name in ("hr_attention_v4bf16", "hr_attention_v4", "hr_linear_v4bf16")}
    address = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in found.items()}

    def kernels(slow: bool, **functions: Any) -> native.Library:
        loaded = SimpleNamespace(hr_cpu_has=lambda level: int(slow and level == 6), **functions)
        return native.Library(Path("libheadrace_cpu.so"), isa, cast(ctypes.CDLL, loaded))

    assert kernels(True, **found).kernel("attention") == address["hr_attention_v4"]
    assert kernels(False, **found).kernel("attention") == address["hr_attention_v4bf16"]
    # Cached blocks of one kind of processor are not taken by the other.
    assert (kernels(True, **found).without_dot, kernels(False, **found).without_dot) == (("attention",), ())
    assert kernels(True, **found).kernel("linear") == address["hr_linear_v4bf16"]
    del found["hr_attention_v4"]
    assert kernels(True, **found).kernel("attention") == address["hr_attention_v4bf16"]
