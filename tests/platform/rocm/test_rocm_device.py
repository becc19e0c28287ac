"""On a device only."""

from __future__ import annotations

import pytest
from device_only import DeviceOnly

from headrace.platforms.rocm import RocmPlatform

SCORE, REASON = RocmPlatform().probe()


@pytest.mark.needs_rocm
@pytest.mark.skipif(not SCORE, reason=REASON)
class TestRocmDevice(DeviceOnly):
    platform = RocmPlatform
