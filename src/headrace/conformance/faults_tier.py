"""Tier 8: failures on a device are reported as errors of the contract, and the device continues if it can."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import numpy as np
import pytest

from headrace.conformance.fault_injection import ServingWithFault
from headrace.conformance.tiers import tier
from headrace.conformance.tiny import Serving, TinyModel, agreeing, requests
from headrace.conformance.transfer import head_size
from headrace.errors import DeviceLost, OutOfMemory, PlatformError
from headrace.platforms.interface import KV, Device, Platform, Tensor
from headrace.types import Bucket, KVLayout, LayerKV

__all__ = ["FaultsTier"]

_BUCKET = Bucket(4, 4, 4, 1)
_REQUESTS = 6
_FAULTS = (
    RuntimeError("an injected failure of a kernel"),
    OutOfMemory("an injected lack of memory: 2 bytes were asked for, 1 is free"),
)


@tier("faults")
class FaultsTier:
    def layout(self, device: Device) -> KVLayout:
        capabilities = device.capabilities()
        return KVLayout(
            (LayerKV(1, head_size(capabilities)),), capabilities.block_sizes[0], min(capabilities.kv_dtypes)
        )

    def test_out_of_memory_leaves_the_device_usable(self, device: Device) -> None:
        layout = self.layout(device)
        with pytest.raises(OutOfMemory):
            device.alloc_kv(layout, 4 * device.memory()[1] // layout.bytes_per_block)
        device.alloc_kv(layout, 2)
        np.testing.assert_array_equal(device.get(device.put(np.arange(3))).result(), np.arange(3))

    def test_a_failing_step_is_reported_and_the_next_one_runs(self, device: Device) -> None:
        """The error is raised by `compile`, the call, or the result."""

        def broken(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            raise RuntimeError("a kernel that fails")

        def intact(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            return kv, {"x": inputs["x"]}

        kv = device.alloc_kv(self.layout(device), 2)
        x = device.put(np.arange(4, dtype=np.int32))
        with pytest.raises(PlatformError, match="a kernel that fails"):
            device.get(device.compile(broken, _BUCKET)(kv, {"x": x})[1]["x"]).result()
        if not device.capabilities().in_place_kv:
            kv = device.alloc_kv(self.layout(device), 2)  # the other cache was donated to the failed step
        _, outputs = device.compile(intact, _BUCKET)(kv, {"x": x})
        np.testing.assert_array_equal(device.get(outputs["x"]).result(), np.arange(4))

    @pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.__class__.__name__)
    def test_the_engine_survives(self, device: Device, model: TinyModel, fault: Exception) -> None:
        """The requests of a step that fails end with its error. All others, and later ones, are served completely, with
        the tokens of a device without failures. The last ones find prefixes of the earlier ones in the cache."""
        wanted = Serving(device, model, budget=48, seqs=3).run(requests(_REQUESTS))
        serving = ServingWithFault(device, model, fault)
        found = serving.run(requests(_REQUESTS))
        assert serving.raised, "the failed step raised no error"
        for error in serving.raised:
            wanted_kind = type(fault) if isinstance(fault, PlatformError) else PlatformError
            assert isinstance(error, wanted_kind), f"{type(error).__name__} is not {wanted_kind.__name__}: {error}"
            assert not isinstance(error, DeviceLost), "the device is not lost"
        assert 0 < len(serving.errors) < _REQUESTS
        assert all(str(fault) in message for message in serving.errors.values()), serving.errors
        served = [(name, answer) for name, answer in found.items() if name not in serving.errors]
        again = [*serving.run(requests(_REQUESTS)).items(), *serving.run(requests(_REQUESTS)).items()]
        whole = []
        for name, answer in (*served, *again):
            assert len(answer[0]) == len(wanted[name][0])
            same = answer[0] == wanted[name][0]
            assert same or not device.capabilities().deterministic, (
                f"{name}: {answer[0]}, and {wanted[name][0]} is right"
            )
            whole.append(same or agreeing(answer, wanted[name]) == len(answer[0]))
        # If sums depend on the batch, another token may win a near-tie.
        assert sum(whole) >= len(whole) - 2, f"{len(whole) - sum(whole)} of {len(whole)} answers have other tokens"

    def test_a_lost_device_ends_the_engine(self, platform: Platform | None) -> None:
        """The error is DeviceLost, which ends the engine; a device that is opened again serves."""
        if platform is None:
            pytest.skip("no `platform` fixture")
        device = platform.open(0, {})
        try:
            serving = ServingWithFault(device, TinyModel(device), DeviceLost("an injected loss of the device"))
            with pytest.raises(DeviceLost, match="an injected loss of the device"):
                serving.run(requests(_REQUESTS))
            with contextlib.suppress(DeviceLost):
                np.testing.assert_array_equal(device.get(device.put(np.arange(3))).result(), np.arange(3))
        finally:
            device.close()
        device = platform.open(0, {})
        try:
            answers = Serving(device, TinyModel(device)).run(requests(2))
            assert [len(tokens) for tokens, _ in answers.values()] == [8, 8]
        finally:
            device.close()

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
