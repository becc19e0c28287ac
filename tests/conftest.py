"""One thread of torch; examples that hypothesis draws are the same in every run, and no clock judges them."""

from __future__ import annotations

import os

# Before anything loads torch, and for the processes that tests start. On tensors as small as here more threads do
# nothing but
# wait for one another in busy loops: eight times the processor time on two cores, more on more. The native kernels have
# a team
# of their own, and what must not depend on torch's threads is tested with several (`test_kernels_reproducible`).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")
