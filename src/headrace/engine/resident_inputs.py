"""Inputs of executables on the device; one that is as it was the last time is not put there again.

Most inputs do not change from one step to the next: with the same sequences only places and lengths do. Their tensors
are used again, which also spares the device a look at them: a tape copies only tensors that are new to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.platforms.interface import Device, Tensor

__all__ = ["ResidentInputs"]


class ResidentInputs:
    """The latest tensor of each input. One thread calls it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[str, tuple[npt.NDArray[Any], bytes, Tensor]] = {}

    def put(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
        """The arrays on the device. They must not change from now on, so the same object needs no comparison; an input
        of one name always has one dtype. Raises PlatformError."""
        kept = self._kept
        found: dict[str, Tensor] = {}
        for name, array in arrays.items():
            last = kept.get(name)
            if last is None or last[0] is not array:
                data = array.tobytes()
                if last is not None and last[1] == data and last[0].shape == array.shape:
                    tensor = last[2]
                else:
                    tensor = self._device.put(np.ascontiguousarray(array))
                last = kept[name] = (array, data, tensor)
            found[name] = last[2]
        return found
