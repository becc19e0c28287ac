"""What a program will ask for next, behind a generation: as far as that does not depend on what is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.lang.plan import ExprOp, GenOp, NewStateOp, PlanOp, Region, RoleBeginOp, RoleEndOp, TextOp

__all__ = ["NextGen", "next_gens"]


_HARMLESS = (TextOp, GenOp, RoleBeginOp, RoleEndOp, NewStateOp, ExprOp)


class NextGen(NamedTuple):
    """A generation that follows another one in the same message, with the texts between them."""

    texts: tuple[TextOp, ...]
    op: GenOp


def next_gens(region: Region) -> dict[int, NextGen]:
    """For generations of a region, by `id`, the one that follows if nothing between them can fail, call a function or
    choose another way."""
    found: dict[int, NextGen] = {}
    for at, op in enumerate(region.ops):
        if isinstance(op, GenOp) and (following := _next(op, region.ops[at + 1 :])) is not None:
            found[id(op)] = following
    return found


def _next(first: GenOp, ops: Sequence[PlanOp]) -> NextGen | None:
    state, texts = first.out_state, list[TextOp]()
    for op in ops:
        if isinstance(op, TextOp) and op.state.id == state:
            texts.append(op)
            state = op.out
        elif isinstance(op, GenOp) and op.state.id == state:
            return NextGen(tuple(texts), op)
        elif not isinstance(op, _HARMLESS) or (isinstance(op, (RoleBeginOp, RoleEndOp)) and op.state.id == state):
            return None
    return None
