"""Plots for a report: SVG inside the page, in the page's colours."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.request_timing import percentile

__all__ = ["Bar", "Plot", "bars", "curve", "distribution", "line", "text"]

_WIDTH, _LEFT, _RIGHT = 720, 60, 8
_HEIGHT, _BOTTOM, _TOP = 220, 24, 4
_NAMES, _ROW, _ROOM = 300, 24, 70
"""Of a bar plot, in pixels: width of the names, height of a bar, and width of the value."""
_COLOUR = "#2a7ae2"


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: `svg` is markup, `caption` is plain text."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `span`: the lowest and the highest of the measurements that `value` summarizes."""

    name: str
    value: float
    span: tuple[float, float] | None = None


def distribution(values: Sequence[float], caption: str) -> Plot:
    """The percentiles 0 to 100 as a curve."""
    ordered = sorted(values)
    points = [percentile(ordered, p) for p in range(101)]
    return curve(points, [(p, f"p{p}") for p in (0, 25, 50, 75, 90, 99)], caption)


def curve(values: Sequence[float], ticks: Sequence[tuple[int, str]], caption: str) -> Plot:
    """A curve of values at even steps, from 0 up; `ticks` are names of some of their indices."""
    top = max(values) or 1.0
    span = max(1, len(values) - 1)

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / span

    def y(share: float) -> float:
        return _TOP + (_HEIGHT - _BOTTOM) * (1 - share)

    points = " ".join(f"{x(at):.1f},{y(value / top):.1f}" for at, value in enumerate(values))
    grid = "".join(
        line(_LEFT, _WIDTH - _RIGHT, y(q), y(q)) + text(_LEFT - 6, y(q) + 4, f"{top * q:.4g}", "end")
        for q in (0, 0.25, 0.5, 0.75, 1)
    )
    names = "".join(text(x(at), _HEIGHT - 6, name, "middle") for at, name in ticks)
    polyline = f'<polyline points="{points}" fill="none" stroke="{_COLOUR}" stroke-width="2"/>'
    return Plot(_svg(_HEIGHT, grid + names + polyline), caption)


def bars(entries: Sequence[Bar], caption: str, mark: float | None = None) -> Plot:
    """Horizontal bars from 0, one below the other, with a vertical line at `mark`."""
    ends = [max(one.value, *(one.span or (0.0,))) for one in entries]
    top = max([*ends, mark or 0.0]) or 1.0
    height = _ROW * len(entries) + 8

    def x(value: float) -> float:
        return _NAMES + (_WIDTH - _NAMES - _ROOM) * value / top

    rows = [_bar(one, end, _ROW * at + 4, x) for at, (one, end) in enumerate(zip(entries, ends, strict=True))]
    marked = "" if mark is None else line(x(mark), x(mark), 0, height, "#c4472d")
    return Plot(_svg(height, "".join(rows) + marked), caption)


def _bar(one: Bar, end: float, top: float, x: Callable[[float], float]) -> str:
    middle = top + _ROW / 2
    size = f'width="{x(one.value) - _NAMES:.1f}" height="{_ROW - 6}"'
    box = f'<rect x="{_NAMES}" y="{top + 3:.1f}" {size} fill="{_COLOUR}"/>'
    span = "" if one.span is None else line(x(one.span[0]), x(one.span[1]), middle, middle, "currentColor")
    return text(_NAMES - 6, middle + 4, one.name, "end") + box + span + text(x(end) + 6, middle + 4, f"{one.value:.4g}")


def line(x1: float, x2: float, y1: float, y2: float, colour: str = "#8884") -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, content: str, anchor: str = "start") -> str:
    style = f'text-anchor="{anchor}" font-size="11" fill="currentColor"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(content)}</text>'


def _svg(height: int, inside: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{inside}</svg>'
