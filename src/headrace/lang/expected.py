"""What a program will ask for next, behind a generation: as far as that does not depend on what is generated."""

from __future__ import annotations

from typing import NamedTuple

from headrace.lang.plan import ExprOp, GenOp, NewStateOp, Region, RoleBeginOp, RoleEndOp, TextOp

__all__ = ["NextGen", "next_gens"]


_HARMLESS = (NewStateOp, ExprOp)


class NextGen(NamedTuple):
    """A generation that follows another one in the same message, with the texts between them."""

    texts: tuple[TextOp, ...]
    op: GenOp


def next_gens(region: Region) -> dict[int, NextGen]:
    """For generations of a region, by `id`, the one that follows if nothing between them can fail, call a function or
    choose another way."""
    found: dict[int, NextGen] = {}
    waiting: dict[int, tuple[GenOp, list[TextOp]]] = {}
    """By state: the generation that it is behind, and the texts since."""
    for op in region.ops:
        if isinstance(op, TextOp):
            if (before := waiting.pop(op.state.id, None)) is not None:
                before[1].append(op)
                waiting[op.out] = before
        elif isinstance(op, GenOp):
            if (before := waiting.pop(op.state.id, None)) is not None:
                found[id(before[0])] = NextGen(tuple(before[1]), op)
            waiting[op.out_state] = op, []
        elif isinstance(op, (RoleBeginOp, RoleEndOp)):
            waiting.pop(op.state.id, None)
        elif not isinstance(op, _HARMLESS):
            waiting.clear()
    return found
