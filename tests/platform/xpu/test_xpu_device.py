"""On a device only."""

from __future__ import annotations

import pytest
from device_only import DeviceOnly

from headrace.platforms.xpu import XpuPlatform

SCORE, REASON = XpuPlatform().probe()


@pytest.mark.needs_xpu
@pytest.mark.skipif(not SCORE, reason=REASON)
class TestXpuDevice(DeviceOnly):
    platform = XpuPlatform
