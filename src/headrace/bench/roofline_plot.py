"""The roofline plot: operations per byte against operations per second, with the machine's limits."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.machine_limits import MachineLimits
from headrace.bench.plots import Plot, line, text

__all__ = ["COLUMNS", "KINDS", "Point", "roofline"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 420, 60, 34
_DECADES_X, _DECADES_Y = (-1.0, 4.0), (8.0, 13.0)
"""Powers of ten that the axes show."""
KINDS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class Point:
    """One product or operator: bytes read and written, operations, seconds, and its share of the limit."""

    name: str
    step: str
    bytes: float
    operations: float
    seconds: float
    share: float

    def cells(self) -> tuple[str, ...]:
        seconds = max(self.seconds, 1e-12)
        return (
            self.name, self.step, f"{self.seconds * 1e6:.1f}", f"{self.bytes / seconds / 1e9:.1f}",
            f"{self.operations / seconds / 1e9:.0f}", f"{self.share:.0%}",
        )  # fmt: skip


COLUMNS = ("what", "step", "µs", "GB/s", "Gop/s", "of the limit")


def roofline(limits: MachineLimits, points: Sequence[Point]) -> Plot:
    """A plot with a dot for each point that has operations; the dot's title shows its cells."""
    roofs = "".join(_roof(limits.read, limits.arithmetic(kind), kind) for kind in KINDS)
    dots = "".join(
        f'<circle cx="{_x(p.operations / p.bytes):.1f}" cy="{_y(p.operations / p.seconds):.1f}" r="4" fill="#2a7ae2aa">'
        f"<title>{html.escape(', '.join(p.cells()))}</title></circle>"
        for p in points
        if p.operations and p.bytes and p.seconds
    )
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_grid()}{roofs}{dots}</svg>'
    return Plot(
        svg,
        "operations per byte against operations per second; the lines are the limits of the memory and of each type",
    )


def _roof(read: float, peak: float, kind: str) -> str:
    corner, right = peak / read, 10 ** _DECADES_X[1]
    left = 10 ** _DECADES_X[0]
    roof = f"{_x(left):.1f},{_y(read * left):.1f} {_x(corner):.1f},{_y(peak):.1f} {_x(right):.1f},{_y(peak):.1f}"
    return f'<polyline points="{roof}" fill="none" stroke="#c4472d" stroke-width="1.5"/>' + text(
        _WIDTH - 12, _y(peak) - 4, kind, "end"
    )


def _grid() -> str:
    lines = []
    for power in range(int(_DECADES_X[0]), int(_DECADES_X[1]) + 1):
        x = _x(10.0**power)
        lines.append(line(x, x, 4, _HEIGHT - _BOTTOM) + text(x, _HEIGHT - 16, f"{10.0**power:g}", "middle"))
    for power in range(int(_DECADES_Y[0]), int(_DECADES_Y[1]) + 1):
        y = _y(10.0**power)
        lines.append(line(_LEFT, _WIDTH - 8, y, y) + text(_LEFT - 6, y + 4, f"{10.0 ** (power - 9):g}", "end"))
    lines.append(text(_WIDTH / 2, _HEIGHT - 2, "operations per byte", "middle") + text(4, 12, "Gop/s", "start"))
    return "".join(lines)


def _x(value: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 8) * _place(value, _DECADES_X)


def _y(value: float) -> float:
    return 4 + (_HEIGHT - _BOTTOM - 4) * (1 - _place(value, _DECADES_Y))


def _place(value: float, decades: tuple[float, float]) -> float:
    """Position along an axis, from 0 to 1."""
    low, high = decades
    return min(1.0, max(0.0, (math.log10(value) - low) / (high - low))) if value > 0 else 0.0
