"""Inputs that stay on the device: what is put again, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.resident_inputs import ResidentInputs
from headrace.platforms.interface import Device

Array = npt.NDArray[Any]


class PutsOnly:
    """A device that remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[Array] = []

    def put(self, array: Array) -> Array:
        assert array.flags.c_contiguous
        self.given.append(array)
        return array.copy()


def resident() -> tuple[ResidentInputs, PutsOnly]:
    device = PutsOnly()
    own: Any = device
    kept: Device = own
    return ResidentInputs(kept), device


def test_the_same_values_are_put_once() -> None:
    inputs, device = resident()
    first = inputs.put({"a": np.arange(3), "b": np.zeros(2)})
    again = inputs.put({"b": np.zeros(2), "a": np.arange(3)})
    assert len(device.given) == 2
    assert list(again) == ["b", "a"]
    assert all(again[name] is first[name] for name in first)


def test_other_values_and_other_shapes_are_put_again() -> None:
    inputs, device = resident()
    made = [inputs.put({"a": array})["a"] for array in (np.arange(4), np.arange(1, 5), np.arange(1, 5).reshape(2, 2))]
    assert [tensor.tolist() for tensor in made] == [[0, 1, 2, 3], [1, 2, 3, 4], [[1, 2], [3, 4]]]
    assert len(device.given) == 3
    assert inputs.put({"a": np.arange(4)})["a"].tolist() == [0, 1, 2, 3]


def test_strided_arrays_are_put_by_value() -> None:
    inputs, device = resident()
    columns = np.arange(6).reshape(2, 3).T
    assert inputs.put({"a": columns})["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    inputs.put({"a": np.ascontiguousarray(columns)})
    assert len(device.given) == 1


def test_names_that_a_call_leaves_out_are_kept() -> None:
    inputs, device = resident()
    inputs.put({"a": np.arange(3), "b": np.arange(2)})
    assert set(inputs.put({"a": np.arange(3)})) == {"a"}
    inputs.put({"b": np.arange(2)})
    assert len(device.given) == 2
