"""A part of the suite of connectors: ends whose blocks have other sizes or other splits of the heads."""

from __future__ import annotations

from typing import NamedTuple

from headrace.transfer.block_form import BlockForm, form_bytes
from headrace.transfer.identity import Identity

__all__ = ["CASES", "Case", "identity_of"]

_ROWS = ((6, 6, 4, 4), (10, 10, 4, 4))
"""Two layers of a cache with scales: bytes of a token's row."""
_HEADS, _ALIGN = 2, 32
_SPLITS = {1: ((0, 2),), 2: ((0, 1), (1, 1)), 4: ((0, 1), (0, 1), (1, 1), (1, 1))}
"""(First head, number of heads) of each rank; of four ranks, two share one."""


def identity_of(block_size: int, ranks: int) -> Identity:
    """An engine with blocks of so many tokens whose heads are distributed over so many ranks."""
    split = tuple(tuple((layer, *heads) for layer in range(len(_ROWS))) for heads in _SPLITS[ranks])
    form = BlockForm(_ROWS, split, _ALIGN)
    layout = f"layout {block_size:4} {ranks:4}".encode()
    size = form_bytes(form, block_size)
    return Identity(
        "ab" * 16, layout, "int8", block_size, size, ranks, epoch=7, content_id=b"the same numbers", form=form
    )


class Case(NamedTuple):
    """Which blocks of which engine are fetched by which."""

    theirs: tuple[int, int]
    """Tokens of a block, ranks."""
    ours: tuple[int, int]
    given: int
    """Tokens that the other end has in full blocks."""
    first: int
    """Our first block."""
    asked: int
    """Blocks of ours that are asked for."""
    arrive: int


CASES = (
    Case((32, 1), (16, 1), 96, 0, 6, 6),
    Case((32, 1), (16, 1), 96, 1, 4, 4),
    Case((16, 1), (32, 1), 96, 0, 3, 3),
    Case((16, 1), (64, 1), 112, 0, 1, 1),
    Case((64, 1), (16, 1), 128, 3, 5, 5),
    Case((32, 1), (16, 1), 64, 0, 5, 4),
    Case((16, 2), (16, 1), 48, 0, 3, 3),
    Case((16, 1), (16, 2), 48, 1, 2, 2),
    Case((16, 1), (16, 4), 48, 0, 3, 3),
    Case((16, 4), (32, 2), 96, 1, 2, 2),
)
