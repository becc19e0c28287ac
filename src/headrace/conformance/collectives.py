"""Tier 6: collectives of one rank give back what they are given. Larger groups are tested by the communication suite."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.conformance.tiers import tier
from headrace.errors import PlatformError
from headrace.platforms.interface import Communicator, Device

__all__ = ["CollectivesTier"]


@tier("collectives")
class CollectivesTier:
    def test_one_rank_is_the_identity(self, device: Device) -> None:
        group = device.communicator([0])
        assert isinstance(group, Communicator)
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        tensor = device.put(array)
        found = [group.all_reduce(tensor), group.all_gather(tensor, 0), group.reduce_scatter(tensor, 0)]
        for result in [*found, group.broadcast(tensor, 0)]:
            np.testing.assert_array_equal(device.get(result).result(), array)

    def test_an_undeclared_group_is_refused(self, device: Device) -> None:
        if device.capabilities().collectives:
            pytest.skip("collectives are declared")
        with pytest.raises(PlatformError, match="2"):
            device.communicator([0, 1])
