"""The native device reports the operators that it lacks, and what serves instead."""

from __future__ import annotations

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
