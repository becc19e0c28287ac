"""The time that a step of the device takes, learnt from the steps that it has made.

    seconds(tokens, context) = speed · (curve(tokens) + slope · context)

`tokens` is the number of tokens that the step computes, `context` the sum of the number of tokens that each of them
attends to. Steps are sorted into cells by both numbers on a log scale (every number up to 16 has a cell of its own,
since kernels change their form at small sizes), and a cell keeps its latest times. Everything is made of medians, so a
step that was interrupted, or compiled first, changes nothing. The slope is the median of the slopes between cells with
the same tokens; the curve is the median of what remains, made monotone, and linear between its points. Beyond them it
follows the prior: a token more costs a fixed share of a step of one token.

The speed is that of the machine at present, which changes for all steps alike: what the latest steps that are there to
give it took relative to curve and slope. As other work can only make a step longer, and often does so to two or three
in a row, the second shortest of five counts. Times are kept in cells without most of it.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

__all__ = ["StepCost"]

_EXACT = 16
"""Up to this number of tokens, each has a cell of its own."""
_PER_OCTAVE = 8
_CELLS = _EXACT + 24 * _PER_OCTAVE
_KEPT = 25
"""Times in a cell. The median of nine is often wrong by 5 % on a busy machine, which is as much as many drafts gain."""
_ENOUGH = 3
"""Times from which on a median counts."""
_LATEST, _RANK = 5, 1
"""Steps that give the speed, and the place of the one that counts, from the shortest."""
_SHARED = 0.9
"""The part of a change of speed, as an exponent, that is the machine's. The rest counts as the cell's own, so that a
cell whose first times were wrong is corrected."""
_FASTEST, _SLOWEST = 0.25, 4.0
"""The bounds of the speed's ratios: a step beyond them was interrupted, or read late."""
_SMALL = 64
"""Contexts below this are not told apart."""
_FAR = 1.8
"""The ratio of two contexts from which on noise does not decide the slope between them."""
_STALE = 4096
"""The number of steps after which the times of a cell are too old to be believed."""
_REFRESH = 24
"""The number of steps after which the curve is made anew, unless a new point has come."""
_SLOPE_REFRESH = 512
"""The same for the slope; early on it is oftener."""


class _Cell:
    """The latest times of steps of about one size."""

    __slots__ = ("at", "contexts", "seconds", "tokens", "trial")

    def __init__(self) -> None:
        self.tokens: deque[int] = deque(maxlen=_KEPT)
        self.contexts: deque[int] = deque(maxlen=_KEPT)
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        self.at = 0
        self.trial = False

    def add(self, tokens: int, context: int, seconds: float, at: int) -> None:
        if at - self.at > _STALE:
            self.seconds.clear()
            self.tokens.clear()
            self.contexts.clear()
        self.tokens.append(tokens)
        self.contexts.append(context)
        self.seconds.append(seconds)
        self.at = at


class StepCost:
    """Learns from each step and predicts the next. Before the first steps, and beyond them, `share` counts: the cost of
    a further token as a share of the cost of a step of one token. Then only ratios of its predictions mean anything."""

    def __init__(self, share: float = 0.15) -> None:
        self._share = share
        self._cells: list[dict[int, _Cell]] = [{} for _ in range(_CELLS)]
        """By the number of tokens and the context."""
        self._known_at = [-_STALE - 1] * _CELLS
        """By the number of tokens: the step of the latest time."""
        self._changed = set[int]()
        self._points: dict[int, tuple[float, float, int]] = {}
        """By the number of tokens: its mean, the time without context, and the number of times."""
        self._steps = self._made_at = self._sloped_at = 0
        self._speed = 1.0
        """The time of steps now, relative to curve and slope."""
        self._ratios: deque[float] = deque(maxlen=_LATEST)
        """The same of the latest steps that give it."""
        self._slope = 0.0
        self._curve: list[float] = []
        self._table: list[float] = []
        self._known: list[bool] = []

    def observe(self, tokens: int, context: int, seconds: float, reference: bool = False) -> None:
        """Learn from one step. `reference`: it is of the kind that others are compared with, so it tells the speed."""
        if tokens < 1 or not seconds > 0:
            return
        self._steps += 1
        if reference and self.known(tokens):
            self._adapt(seconds / (self._curve_to(tokens + 1)[tokens] + self._slope * context))
        seconds /= self._speed**_SHARED
        at = _cell(tokens)
        for key in [key for key, cell in self._cells[at].items() if cell.trial]:
            del self._cells[at][key]
        cell = self._cells[at].setdefault(_context_cell(context), _Cell())
        cell.add(tokens, context, seconds, self._steps)
        if len(cell.seconds) >= _ENOUGH:
            fresh = self.known(tokens)
            self._known_at[at] = self._steps
            self._changed.add(at)
            if not fresh or self._steps - self._made_at >= _REFRESH:
                self._make()

    @property
    def slope(self) -> float:
        """Seconds for each token of context."""
        return self._speed * self._slope

    def replace_soon(self) -> None:
        """What was observed so far was a trial: it counts until there is enough that comes later, of each number of
        tokens."""
        for cells in self._cells:
            for cell in cells.values():
                cell.trial = True

    def known(self, tokens: int) -> bool:
        """Steps of about this number of tokens have been measured, and not too long ago."""
        return self._steps - self._known_at[_cell(tokens)] <= _STALE

    def known_table(self, stop: int) -> list[bool]:
        """`known` of 0 to at least `stop` - 1 tokens, as of the latest curve. Read-only."""
        if len(self._known) < stop:
            fresh = self._steps - np.array(self._known_at) <= _STALE
            self._known = list(fresh[_cells_below((2 * stop).bit_length())].tolist())
        return self._known

    def known_with(self, tokens: int, context: int) -> bool:
        """The same for steps of about this context."""
        cell = self._cells[_cell(tokens)].get(_context_cell(context))
        return cell is not None and self._counts(cell)

    def at_least(self, tokens: int, context: int) -> float:
        """A time that such a step does not fall below: what the nearest steps took that have no more tokens and no more
        context. 0 if there were none."""
        most = _context_cell(context)
        for at in range(_cell(tokens), 0, -1):
            found = [cell for key, cell in self._cells[at].items() if key <= most and self._counts(cell)]
            if found:
                return self._speed * max(median(cell.seconds) for cell in found)
        return 0.0

    def _counts(self, cell: _Cell) -> bool:
        return len(cell.seconds) >= _ENOUGH and self._steps - cell.at <= _STALE

    def seconds(self, tokens: int, context: int = 0) -> float:
        """The predicted time of a step."""
        return self.table(tokens + 1)[tokens] + self.slope * context

    def table(self, stop: int) -> list[float]:
        """The predicted times of steps of 0 to at least `stop` - 1 tokens, without their context. Read-only."""
        if len(self._table) < stop:
            self._table = [self._speed * value for value in self._curve_to(stop)]
        return self._table

    def _curve_to(self, stop: int) -> list[float]:
        if len(self._curve) < stop:
            self._curve = self._predict(2 * stop)
        return self._curve

    def _adapt(self, ratio: float) -> None:
        """Take in what a step took relative to curve and slope."""
        self._ratios.append(min(max(ratio, _FASTEST), _SLOWEST))
        if len(self._ratios) >= _ENOUGH:
            self._speed = sorted(self._ratios)[_RANK]
            self._table = []

    def _predict(self, stop: int) -> list[float]:
        tokens = np.arange(stop)
        shape = 1 + self._share * (np.maximum(tokens, 1) - 1)
        if not self._points:
            return list(shape.tolist())
        points = sorted(self._points.values())
        at = np.array([mean for mean, _, _ in points])
        seconds = np.array(_monotone([(value, weight) for _, value, weight in points]))
        first, last = seconds[[0, -1]] / (1 + self._share * (at[[0, -1]] - 1))
        found = np.where(tokens < at[0], first * shape, np.interp(tokens, at, seconds))
        return list(np.where(tokens > at[-1], last * shape, found).tolist())

    def _make(self) -> None:
        """Take in what has changed."""
        self._made_at = self._steps
        if self._steps >= min(1.25 * self._sloped_at, self._sloped_at + _SLOPE_REFRESH):
            self._sloped_at = self._steps
            self._slope = self._find_slope()
            self._changed.update(at for at, cells in enumerate(self._cells) if cells)
        for at in self._changed:
            tokens, rest = list[int](), list[float]()
            for cell in self._cells[at].values():
                # Old cells of other contexts count for the slope alone.
                if len(cell.seconds) >= _ENOUGH and self._known_at[at] - cell.at <= _STALE:
                    tokens += cell.tokens
                    rest += map(self._without_context, cell.seconds, cell.contexts)
            if rest:
                self._points[at] = (sum(tokens) / len(tokens), median(rest), len(rest))
        self._changed.clear()
        self._curve, self._table, self._known = [], [], []

    def _without_context(self, seconds: float, context: int) -> float:
        return max(seconds - self._slope * context, 0.1 * seconds)

    def _find_slope(self) -> float:
        """The median slope between cells with the same tokens and other contexts."""
        found = []
        for cells in self._cells:
            ordered = [cells[key] for key in sorted(cells) if len(cells[key].seconds) >= _ENOUGH]
            for first, second in combinations(ordered, 2):
                low, high = median(first.contexts), median(second.contexts)
                if high > _FAR * low:
                    found.append((median(second.seconds) - median(first.seconds)) / (high - low))
        return max(median(found), 0.0) if found else 0.0


@functools.cache
def _cell(tokens: int) -> int:
    if tokens <= _EXACT:
        return tokens
    return min(_EXACT + round(_PER_OCTAVE * math.log2(tokens / _EXACT)), _CELLS - 1)


@functools.cache
def _cells_below(power: int) -> npt.NDArray[np.intp]:
    """The cells of all numbers of tokens below that power of 2."""
    return np.fromiter(map(_cell, range(1 << power)), np.intp, 1 << power)


def _context_cell(context: int) -> int:
    """Two cells for each doubling."""
    return round(2 * math.log2(max(context, _SMALL)))


def _monotone(points: list[tuple[float, int]]) -> list[float]:
    """The nearest values that never fall (weighted least squares: neighbours that fall are pooled)."""
    pools = list[tuple[float, int, int]]()
    for value, weight in points:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (one, first, some), (other, second, more) = pools[-2:]
            pools[-2:] = [((one * first + other * second) / (first + second), first + second, some + more)]
    return [value for value, _, count in pools for _ in range(count)]
