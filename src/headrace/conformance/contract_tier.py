"""Tier 1: all members of the contract exist and return valid values."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import pytest

from headrace.conformance.tiers import tier
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import CONTRACT, Device, Platform
from headrace.plugins import version_fault
from headrace.types import ATTENTION_FEATURES, QUANT_FORMATS, Capabilities, DeviceInfo

__all__ = ["ContractTier"]

_DTYPES = {"float32", "bfloat16", "float16", "quantized"}
_KV = {"float32", "bfloat16", "float16", "int8", "float8_e4m3"}
_DEVICE = [name.partition(".")[2] for name in CONTRACT if name.startswith("Device.")]


@runtime_checkable
class _NoSuchExtension(Protocol):
    def no_such_member(self) -> None: ...


@tier("contract")
class ContractTier:
    @pytest.mark.parametrize("name", _DEVICE)
    def test_device_has(self, device: Device, name: str) -> None:
        assert callable(getattr(device, name, None)), f"Device.{name} is missing"

    def test_platform_declares_itself(self, platform: Platform | None) -> None:
        if platform is None:
            pytest.skip("no `platform` fixture")
        assert isinstance(platform.name, str)
        assert platform.name
        assert version_fault(tuple(platform.api_version)) is None
        score, reason = platform.probe()
        assert isinstance(score, int)
        assert score >= 0
        assert isinstance(reason, str)
        assert reason, "a probe gives a reason"

    def test_platform_lists_devices(self, platform: Platform | None) -> None:
        if platform is None:
            pytest.skip("no `platform` fixture")
        found = platform.devices()
        assert all(isinstance(info, DeviceInfo) for info in found)
        assert len({info.index for info in found}) == len(found)

    def test_capabilities_are_frozen_and_stay(self, device: Device) -> None:
        capabilities = device.capabilities()
        assert isinstance(capabilities, Capabilities)
        assert capabilities == device.capabilities()
        with pytest.raises(dataclasses.FrozenInstanceError):
            capabilities.deterministic = True  # type: ignore[misc]

    def test_capabilities_use_known_words(self, device: Device) -> None:
        found = device.capabilities()
        assert found.dtypes
        assert found.dtypes <= _DTYPES
        assert found.kv_dtypes
        assert found.kv_dtypes <= _KV
        assert found.attention_features <= ATTENTION_FEATURES
        assert found.quant_formats <= QUANT_FORMATS, "only formats for which the kit has random weights may be declared"
        assert all(size > 0 for size in found.head_sizes)
        assert found.missing_operators <= {spec.name for spec in OPTIONAL}
        assert not any(device.op(spec) for spec in OPTIONAL if spec.name in found.missing_operators)
        assert found.block_sizes
        assert all(size > 0 for size in found.block_sizes)
        assert found.max_tokens_per_step > 0

    def test_memory_is_free_and_total_bytes(self, device: Device) -> None:
        free, total = device.memory()
        assert isinstance(free, int)
        assert isinstance(total, int)
        assert 0 <= free <= total
        assert total > 0

    @pytest.mark.parametrize("spec", [*OPS, *OPTIONAL], ids=lambda spec: spec.name)
    def test_op_is_callable_or_none(self, device: Device, spec: OpSpec) -> None:
        found = device.op(spec)
        assert found is None or callable(found)

    def test_unknown_operator_is_none(self, device: Device) -> None:
        nowhere = "headrace.kernels.registry:bind"
        assert device.op(OpSpec("no_such_operator", nowhere, nowhere, {})) is None

    def test_unknown_extension_is_none(self, device: Device) -> None:
        assert device.extension(_NoSuchExtension) is None
