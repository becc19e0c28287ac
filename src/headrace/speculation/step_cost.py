"""The time that a step of the device takes, learnt from the steps that it has made.

    seconds(tokens, context) = curve(tokens) + slope · context

`tokens` is the number of tokens that the step computes, `context` the sum of the number of tokens that each of them
attends to. Steps are sorted into cells by both numbers on a log scale (every number up to 16 has a cell of its own,
since kernels change their form at small sizes), and a cell keeps its latest times. Everything is made of medians, so a
step that was interrupted, or compiled first, changes nothing. The slope is the median of the slopes between cells with
the same tokens; the curve is the median of what remains, made monotone, and linear between its points. Beyond them it
follows the prior: a token more costs a fixed share of a step of one token.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from itertools import pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

__all__ = ["StepCost"]

_EXACT = 16
"""Up to this number of tokens, each has a cell of its own."""
_PER_OCTAVE = 8
_CELLS = _EXACT + 24 * _PER_OCTAVE
_KEPT = 9
"""Times in a cell."""
_ENOUGH = 3
"""Times from which on a median counts."""
_STALE = 4096
"""The number of steps after which the times of a cell are too old to be believed."""
_REFRESH = 24
"""The number of steps after which the curve is made anew, unless a new point has come."""


class _Cell:
    """The latest times of steps of about one size."""

    __slots__ = ("at", "contexts", "seconds", "tokens")

    def __init__(self) -> None:
        self.tokens: deque[int] = deque(maxlen=_KEPT)
        self.contexts: deque[int] = deque(maxlen=_KEPT)
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        self.at = 0

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
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._steps = 0
        self._made_at = 0
        self._slope = 0.0
        self._at = np.array([1.0])
        self._seconds = np.array([1.0])
        self._table: npt.NDArray[np.float64] = np.empty(0)
        self._known_at = np.full(_CELLS, -_STALE - 1)
        """By the cell of the number of tokens: the step of the latest time."""

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """Learn from one step."""
        if tokens < 1 or not seconds > 0:
            return
        self._steps += 1
        key = (_cell(tokens), _octave(context))
        cell = self._cells.setdefault(key, _Cell())
        cell.add(tokens, context, seconds, self._steps)
        if len(cell.seconds) >= _ENOUGH:
            fresh = self.known(tokens)
            self._known_at[key[0]] = self._steps
            if not fresh or self._steps - self._made_at >= _REFRESH:
                self._make()

    def known(self, tokens: int) -> bool:
        """Steps of about this number of tokens have been measured, and not too long ago."""
        return bool(self._steps - self._known_at[_cell(tokens)] <= _STALE)

    def known_up_to(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """`known` of `count` numbers of tokens from `first` on."""
        found: npt.NDArray[np.bool_] = self._steps - self._known_at[_cells(first + count)[first:]] <= _STALE
        return found

    def seconds(self, tokens: int, context: int = 0) -> float:
        """The predicted time of a step."""
        return float(self.curve(tokens, 1)[0]) + self._slope * context

    @property
    def slope(self) -> float:
        """Seconds for each token of context."""
        return self._slope

    def curve(self, first: int, count: int) -> npt.NDArray[np.float64]:
        """Predicted times of steps of `first` tokens, and one more each, without their context."""
        if len(self._table) < first + count:
            self._table = self._predict(np.arange(2 * (first + count), dtype=np.float64))
        return self._table[first : first + count]

    def _predict(self, tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        at, seconds = self._at, self._seconds
        inside = np.interp(tokens, at, seconds)
        shape = 1 + self._share * (np.maximum(tokens, 1) - 1)
        before = seconds[0] * shape / (1 + self._share * (at[0] - 1))
        after = seconds[-1] * shape / (1 + self._share * (at[-1] - 1))
        found: npt.NDArray[np.float64] = np.where(tokens < at[0], before, np.where(tokens > at[-1], after, inside))
        return found

    def _make(self) -> None:
        self._made_at = self._steps
        cells = [(key, cell) for key, cell in sorted(self._cells.items()) if len(cell.seconds) >= _ENOUGH]
        self._slope = _slope(cells)
        points: dict[int, tuple[list[int], list[float]]] = {}
        newest = {key[0]: int(self._known_at[key[0]]) for key, _ in cells}
        for key, cell in cells:
            # Cells of other contexts stay for the slope alone once they are old.
            if newest[key[0]] - cell.at > _STALE:
                continue
            tokens, rest = points.setdefault(key[0], ([], []))
            tokens += cell.tokens
            rest += [
                max(seconds - self._slope * context, 0.1 * seconds)
                for seconds, context in zip(cell.seconds, cell.contexts, strict=True)
            ]
        self._at = np.array([sum(tokens) / len(tokens) for tokens, _ in points.values()])
        self._seconds = _monotone([(median(rest), len(rest)) for _, rest in points.values()])
        self._table = np.empty(0)


def _cell(tokens: int) -> int:
    if tokens <= _EXACT:
        return tokens
    return min(_EXACT + round(_PER_OCTAVE * math.log2(tokens / _EXACT)), _CELLS - 1)


@functools.cache
def _cells_below(power: int) -> npt.NDArray[np.intp]:
    return np.fromiter((_cell(tokens) for tokens in range(1 << power)), np.intp, 1 << power)


def _cells(stop: int) -> npt.NDArray[np.intp]:
    """The cells of all numbers of tokens below `stop`."""
    return _cells_below(stop.bit_length())[:stop]


def _octave(context: int) -> int:
    return context.bit_length()


def _slope(cells: list[tuple[tuple[int, int], _Cell]]) -> float:
    """The median slope between cells with the same tokens and other contexts."""
    found = []
    for (one, first), (other, second) in pairwise(cells):
        if one[0] == other[0]:
            run = median(second.contexts) - median(first.contexts)
            if run > 0:
                found.append((median(second.seconds) - median(first.seconds)) / run)
    return max(median(found), 0.0) if found else 0.0


def _monotone(points: list[tuple[float, int]]) -> npt.NDArray[np.float64]:
    """The nearest values that never fall (weighted least squares: neighbours that fall are pooled)."""
    pools = list[tuple[float, int, int]]()
    for value, weight in points:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (one, first, some), (other, second, more) = pools[-2:]
            pools[-2:] = [((one * first + other * second) / (first + second), first + second, some + more)]
    return np.array([value for value, _, count in pools for _ in range(count)])
