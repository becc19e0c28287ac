"""Examples that hypothesis draws are the same in every run, and no clock judges them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")
