"""What this machine can do: bytes read a second from memory on huge pages, and products a second by type, in registers."""

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
"""Bytes that no cache holds."""
_REPEATS = 7
_PATIENCE = 0.5
"""Seconds that each limit is looked for: what else the machine does must not pass for its limit."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Of the whole team; bytes and operations a second."""

    read: float
    float32: float
    bfloat16: float
    int8: float

    def arithmetic(self, kind: str) -> float:
        return float(getattr(self, kind))


def measure_limits(threads: int | None = None) -> MachineLimits:
    """Of a team of its own. Raises PlatformError where there are no native kernels."""
    team = Team(load(), threads)
    try:
        return measure_team(team)
    finally:
        team.close()


def measure_team(team: Team, cold: int = COLD) -> MachineLimits:
    """Of a team that is there already; `cold` bytes are what no cache holds."""
    data = WeightArena().take(cold)
    data.fill_(1)
    sink = torch.zeros(16 * team.threads)
    rounds = 200_000

    def best(kernel: str) -> float:
        args = LimitArgs(data.data_ptr(), cold, rounds, sink.data_ptr())
        function = team.library.kernel(kernel)
        return fastest(lambda: team.wait(team.run_kernel(function, args)), _PATIENCE)

    products = 2.0 * rounds * 16 * 16 * team.threads
    return MachineLimits(
        cold / best("limit_read"),
        products / best("limit_f32"),
        2 * products / best("limit_bf16"),
        4 * products / best("limit_int8"),
    )


def fastest(call: Callable[[], None], patience: float = 0.0) -> float:
    """Seconds of the best of several calls, made for as long as `patience` at least."""
    best, count, began = float("inf"), 0, time.perf_counter()
    while count < _REPEATS or time.perf_counter() - began < patience:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best
