"""Tier 2: arrays that are put come back, complete and in order."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.conformance.tiers import tier
from headrace.platforms.interface import Device, Pending

__all__ = ["CopiesTier"]

_SHAPES = [(0,), (1,), (7,), (3, 5), (2, 3, 4), (0, 9), (1031,)]


@tier("copies")
class CopiesTier:
    @pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "uint8"])
    @pytest.mark.parametrize("shape", _SHAPES, ids=str)
    def test_what_is_put_comes_back(self, device: Device, dtype: str, shape: tuple[int, ...]) -> None:
        array = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
        found = device.get(device.put(array)).result()
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        np.testing.assert_array_equal(found, array)

    def test_special_values_survive(self, device: Device) -> None:
        array = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4e38], np.float32)
        found = device.get(device.put(array)).result()
        assert found.tobytes() == array.tobytes()

    def test_strided_arrays_are_put_by_value(self, device: Device) -> None:
        array = np.arange(60, dtype=np.int32).reshape(6, 10)[::2, ::3]
        np.testing.assert_array_equal(device.get(device.put(array)).result(), array)

    def test_an_array_may_be_reused_once_put_returns(self, device: Device) -> None:
        array = np.arange(1 << 16, dtype=np.int32)
        placed = [device.put(array)]
        for turn in range(1, 8):
            array[:] = turn
            placed.append(device.put(array))
        found = [device.get(tensor).result() for tensor in placed]
        np.testing.assert_array_equal(found[0], np.arange(1 << 16))
        assert [int(a.min()) for a in found[1:]] == [int(a.max()) for a in found[1:]] == list(range(1, 8))

    def test_a_result_is_the_callers_own(self, device: Device) -> None:
        tensor = device.put(np.arange(8, dtype=np.int32))
        first = device.get(tensor).result()
        first[:] = -1
        np.testing.assert_array_equal(device.get(tensor).result(), np.arange(8))

    def test_a_result_can_be_asked_for_twice(self, device: Device) -> None:
        pending = device.get(device.put(np.arange(8, dtype=np.int32)))
        assert isinstance(pending, Pending)
        np.testing.assert_array_equal(pending.result(), pending.result())
        assert pending.done() is True

    def test_many_copies_under_way_keep_apart(self, device: Device) -> None:
        waiting = [device.get(device.put(np.full(1024, i, np.int32))) for i in range(64)]
        for i, pending in reversed(list(enumerate(waiting))):
            assert int(pending.result()[0]) == int(pending.result()[-1]) == i
