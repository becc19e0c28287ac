"""Measures this machine's limits: bytes per second from memory (huge pages), and operations per second in registers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.platforms.cpu.native import load
from headrace.platforms.cpu.native_args import LimitArgs
from headrace.platforms.cpu.native_team import Team
from headrace.platforms.cpu.weight_arena import WeightArena

__all__ = ["COLD", "MachineLimits", "fastest", "measure_limits", "measure_team"]

COLD = 128 << 20
"""Bytes; more than any cache holds."""
_REPEATS = 7
_MIN_SECONDS = 0.5
"""Time for which each limit is measured, at least, so that other load on the machine doesn't lower the result."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Limits of all threads of a team together, in bytes per second and operations per second."""

    read: float
    float32: float
    bfloat16: float
    int8: float

    def arithmetic(self, kind: str) -> float:
        return float(getattr(self, kind))


def measure_limits(threads: int | None = None) -> MachineLimits:
    """The limits of a new team of threads. Raises PlatformError if there are no native kernels."""
    team = Team(load(), threads)
    try:
        return measure_team(team)
    finally:
        team.close()


def measure_team(team: Team, cold: int = COLD) -> MachineLimits:
    """The limits of an existing team; `cold`: more bytes than any cache holds."""
    data = WeightArena().take(cold)
    data.fill_(1)
    sink = torch.zeros(16 * team.threads)
    rounds = 200_000

    def best(kernel: str) -> float:
        args = LimitArgs(data.data_ptr(), cold, rounds, sink.data_ptr())
        function = team.library.kernel(kernel)
        return fastest(lambda: team.wait(team.run_kernel(function, args)), _MIN_SECONDS)

    products = 2.0 * rounds * 16 * 16 * team.threads
    return MachineLimits(
        cold / best("limit_read"),
        products / best("limit_f32"),
        2 * products / best("limit_bf16"),
        4 * products / best("limit_int8"),
    )


def fastest(call: Callable[[], None], min_seconds: float = 0.0) -> float:
    """Seconds of the fastest of several calls, repeated for `min_seconds` at least."""
    best, count, first = float("inf"), 0, time.perf_counter()
    while count < _REPEATS or time.perf_counter() - first < min_seconds:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best
