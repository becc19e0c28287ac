"""On a device only."""

from __future__ import annotations

import pytest
from device_only import DeviceOnly

from headrace.platforms.cuda import CudaPlatform

SCORE, REASON = CudaPlatform().probe()


@pytest.mark.needs_cuda
@pytest.mark.skipif(not SCORE, reason=REASON)
class TestCudaDevice(DeviceOnly):
    platform = CudaPlatform
