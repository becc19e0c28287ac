"""How much of a plan lies behind each operation: the longest path to the plan's end, in estimated tokens.

Operations that wait for one another follow each other; the others run at the same time. So a plan ends when its longest
path does, and what has the longest path behind it should run first.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.lang.data_flow import DataFlow
from headrace.lang.plan import (
    CallOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    Operand,
    Plan,
    PlanOp,
    Region,
    SelectOp,
    TextOp,
    WhileOp,
    regions,
)

__all__ = ["CriticalPath"]

_CHARACTERS = 64
"""Characters of a constant text that take about as long as one generated token."""
_SELECT = 1
_CALL = 32
"""A function's time is unknown."""
_MOST = 2**53


class _Left(NamedTuple):
    """What is left at an operation: `base` in the first passes of all loops around it, less `passes[at]` for each pass
    that is done, by its place in the path."""

    base: int
    passes: tuple[int, ...]


class CriticalPath:
    """The estimates of one plan. A `gen` counts with its `max_tokens`, a loop with its most passes, a condition with
    the longer of both blocks."""

    def __init__(self, plan: Plan, flow: DataFlow) -> None:
        self._flow = flow
        self._lengths: dict[int, int] = {}
        self._left: dict[int, _Left] = {}
        self._place(plan.body, 0, ())

    def left(self, op: PlanOp, path: tuple[int, ...]) -> int:
        """Estimated tokens from the beginning of an operation to the end of the plan. `path` has the numbers of the
        branches and passes around it."""
        found = self._left[id(op)]
        done = sum(index * length for index, length in zip(path, found.passes, strict=False))
        return min(max(found.base - done, 0), _MOST)

    def _place(self, region: Region, behind: int, passes: tuple[int, ...]) -> None:
        """Note what is left at each operation of a region, and of those inside of it. `behind`: what follows it."""
        for op, ahead in zip(region.ops, self._ahead(region), strict=True):
            self._left[id(op)] = _Left(ahead + behind, passes)
            after = ahead - self._own(op) + behind
            if isinstance(op, IfOp):
                self._place(op.then, after, passes)
                self._place(op.orelse, after, passes)
            elif isinstance(op, ForkOp):
                self._place(op.body, after, (*passes, 0))
            elif isinstance(op, (ForOp, WhileOp)):
                one = sum(map(self._length, regions(op).values()))
                further = (_passes(op) - 1) * one + after
                self._place(op.body, further, (*passes, one))
                if isinstance(op, WhileOp):
                    self._place(op.cond, further + self._length(op.body), (*passes, one))

    def _ahead(self, region: Region) -> list[int]:
        """For each operation the longest path to the region's end, from its beginning."""
        flow = self._flow.of(region)
        found = [0] * len(region.ops)
        behind = [0] * len(region.ops)
        for at in reversed(range(len(region.ops))):
            found[at] = behind[at] + self._own(region.ops[at])
            for one in flow[at].needs if flow is not None else (at - 1,) if at else ():
                behind[one] = max(behind[one], found[at])
        return found

    def _length(self, region: Region) -> int:
        known = self._lengths.get(id(region))
        if known is None:
            known = self._lengths[id(region)] = max(self._ahead(region), default=0)
        return known

    def _own(self, op: PlanOp) -> int:
        if isinstance(op, GenOp):
            return int(op.sampling.get("max_tokens", 0))
        if isinstance(op, TextOp):
            return sum(map(_characters, op.parts)) // _CHARACTERS
        if isinstance(op, (SelectOp, CallOp)):
            return _SELECT if isinstance(op, SelectOp) else _CALL
        inner = [self._length(one) for one in regions(op).values()]
        if isinstance(op, IfOp):
            return max(inner)
        return _passes(op) * sum(inner) if isinstance(op, (ForOp, WhileOp)) else sum(inner)


def _characters(part: Operand) -> int:
    return len(part.value) if isinstance(part, Lit) and isinstance(part.value, str) else 0


def _passes(op: ForOp | WhileOp) -> int:
    """The most passes of a loop, at least one."""
    over = op.over.value if isinstance(op, ForOp) and isinstance(op.over, Lit) else None
    known = over if isinstance(over, int) else len(over) if isinstance(over, list) else op.max
    return max(1, min(known, op.max))
