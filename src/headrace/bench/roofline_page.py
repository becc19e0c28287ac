"""A self-contained page: operations a byte against operations a second, under the machine's roofs."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.limits import Limits

__all__ = ["COLUMNS", "Point", "write_page"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 420, 60, 34
_DECADES_X, _DECADES_Y = (-1.0, 4.0), (8.0, 13.0)
"""Powers of ten that the axes show."""
_KINDS = ("float32", "bfloat16", "int8")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Roofline</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}}td,th{{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}svg{{width:100%;height:auto}}
@media (prefers-color-scheme:dark){{body{{background:#181818;color:#ddd}}td,th{{border-color:#444}}}}</style>
<h1>Roofline</h1><p>{facts}</p>{plot}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></html>
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One product or operator: what it reads and writes, what it computes, how long it takes, and its share of the limit."""

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


def write_page(path: Path, limits: Limits, points: Sequence[Point]) -> None:
    """It loads nothing from elsewhere."""
    facts = f"memory {limits.read / 1e9:.1f} GB/s; in registers " + ", ".join(
        f"{kind} {limits.arithmetic(kind) / 1e9:.0f} Gop/s" for kind in _KINDS
    )
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in point.cells()) + "</tr>" for point in points
    )
    path.write_text(_PAGE.format(facts=facts, plot=_plot(limits, points), head=head, body=body), encoding="utf-8")


def _plot(limits: Limits, points: Sequence[Point]) -> str:
    roofs = "".join(_roof(limits.read, limits.arithmetic(kind), kind) for kind in _KINDS)
    dots = "".join(
        f'<circle cx="{_x(p.operations / p.bytes):.1f}" cy="{_y(p.operations / p.seconds):.1f}" r="4" fill="#2a7ae2aa">'
        f"<title>{html.escape(', '.join(p.cells()))}</title></circle>"
        for p in points
        if p.operations and p.bytes and p.seconds
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_grid()}{roofs}{dots}</svg>'


def _roof(read: float, peak: float, kind: str) -> str:
    corner, right = peak / read, 10 ** _DECADES_X[1]
    left = 10 ** _DECADES_X[0]
    line = f"{_x(left):.1f},{_y(read * left):.1f} {_x(corner):.1f},{_y(peak):.1f} {_x(right):.1f},{_y(peak):.1f}"
    return (
        f'<polyline points="{line}" fill="none" stroke="#c4472d" stroke-width="1.5"/>'
        f'<text x="{_WIDTH - 12}" y="{_y(peak) - 4:.1f}" text-anchor="end" font-size="11" fill="currentColor">{kind}</text>'
    )


def _grid() -> str:
    lines = []
    for power in range(int(_DECADES_X[0]), int(_DECADES_X[1]) + 1):
        x = _x(10.0**power)
        lines.append(_line(x, x, 4, _HEIGHT - _BOTTOM) + _label(x, _HEIGHT - 16, f"{10.0**power:g}", "middle"))
    for power in range(int(_DECADES_Y[0]), int(_DECADES_Y[1]) + 1):
        y = _y(10.0**power)
        lines.append(_line(_LEFT, _WIDTH - 8, y, y) + _label(_LEFT - 6, y + 4, f"{10.0 ** (power - 9):g}", "end"))
    lines.append(_label(_WIDTH / 2, _HEIGHT - 2, "operations a byte", "middle") + _label(4, 12, "Gop/s", "start"))
    return "".join(lines)


def _line(x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="#8884"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" fill="currentColor">{text}</text>'


def _x(value: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 8) * _place(value, _DECADES_X)


def _y(value: float) -> float:
    return 4 + (_HEIGHT - _BOTTOM - 4) * (1 - _place(value, _DECADES_Y))


def _place(value: float, decades: tuple[float, float]) -> float:
    """From 0 to 1 along an axis."""
    low, high = decades
    return min(1.0, max(0.0, (math.log10(value) - low) / (high - low))) if value > 0 else 0.0
