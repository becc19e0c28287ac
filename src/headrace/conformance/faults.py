"""Tier 8: what goes wrong on a device is told, as an error of the contract, and the device goes on where it can."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from headrace.conformance.tiers import tier
from headrace.errors import OutOfMemory, PlatformError
from headrace.platforms.interface import KV, Device, Platform, Tensor
from headrace.types import Bucket, KVLayout, LayerKV

__all__ = ["FaultsTier"]

_BUCKET = Bucket(4, 4, 4, 1)


@tier("faults")
class FaultsTier:
    def layout(self, device: Device) -> KVLayout:
        capabilities = device.capabilities()
        return KVLayout((LayerKV(1, 16),), capabilities.block_sizes[0], min(capabilities.kv_dtypes))

    def test_out_of_memory_leaves_the_device_usable(self, device: Device) -> None:
        layout = self.layout(device)
        with pytest.raises(OutOfMemory):
            device.alloc_kv(layout, 4 * device.memory()[1] // layout.bytes_per_block)
        device.alloc_kv(layout, 2)
        np.testing.assert_array_equal(device.get(device.put(np.arange(3))).result(), np.arange(3))

    def test_a_failing_step_is_reported_and_the_next_one_runs(self, device: Device) -> None:
        """The error comes from `compile`, the call, or the result: never not at all."""

        def broken(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            raise RuntimeError("a kernel that fails")

        def sound(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            return kv, {"x": inputs["x"]}

        kv = device.alloc_kv(self.layout(device), 2)
        x = device.put(np.arange(4, dtype=np.int32))
        with pytest.raises(PlatformError, match="a kernel that fails"):
            device.get(device.compile(broken, _BUCKET)(kv, {"x": x})[1]["x"]).result()
        _, outputs = device.compile(sound, _BUCKET)(kv, {"x": x})
        np.testing.assert_array_equal(device.get(outputs["x"]).result(), np.arange(4))

    def test_an_unknown_option_is_named(self, platform: Platform | None) -> None:
        if platform is None:
            pytest.skip("no `platform` fixture")
        with pytest.raises(PlatformError, match="no_such_option"):
            platform.open(0, {"no_such_option": 1})

    def test_a_device_that_is_not_there_is_named(self, platform: Platform | None) -> None:
        if platform is None:
            pytest.skip("no `platform` fixture")
        with pytest.raises(PlatformError, match="9999"):
            platform.open(9999, {})

    def test_closing_is_final_and_harmless_twice(self, platform: Platform | None) -> None:
        if platform is None:
            pytest.skip("no `platform` fixture")
        device = platform.open(0, {})
        device.close()
        device.close()
        with pytest.raises(PlatformError):
            device.put(np.arange(3))
