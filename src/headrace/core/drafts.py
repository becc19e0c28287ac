"""The scheduler's interface to speculative decoding: tokens that may come next, to verify in one step.

The model samples at every drafted position with that position's own draw, and a draft is accepted if it equals what was
sampled. So drafts change when tokens are known, never which tokens they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.types import Request

__all__ = ["DraftRow", "DraftSource", "StepSize"]


class StepSize(NamedTuple):
    """A step without drafts."""

    tokens: int
    """The number of tokens that it computes."""
    sampled: int
    """The number of sequences that it gives a token."""
    context: int
    """The number of tokens that its tokens attend to, in total."""


class DraftRow(NamedTuple):
    """A sequence of a step that may verify drafts."""

    sequence: str
    most: int
    """The most drafts that fit its limits."""
    context: int
    """Tokens that its first draft attends to."""
    slot: int
    """Its row of the device's token history."""
    blocks: npt.NDArray[np.int32]
    """Its block table, which may change after the call."""
    ahead: int | None = None
    """None: all its tokens are committed. Otherwise the device makes the drafts, and launched steps may add up to so
    many tokens before them."""
    uncertain: int = 0
    """So many of those are drafts that may be wrong, one fewer token each."""
    wrong: int = 0
    """Earlier ones of such drafts that were wrong."""


class DraftSource(Protocol):
    """Makes drafts and decides how many are verified. The scheduler's thread calls it."""

    def begin(self, request: Request) -> bool:
        """Take up a sequence. False: it has no drafts, and it is not mentioned again."""

    def places(self, request: Request) -> bool:
        """Whether the device makes the drafts of a sequence that `begin` has taken up, so that its steps need not wait
        for each other."""

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        """Add committed tokens of the output; `in_flight`: tokens that launched steps will add to them."""

    def pause(self, sequence: str, keep: bool) -> None:
        """A sequence gives its slot and its blocks back, and waits for others; `keep`: what launched steps have
        computed of its tokens is right. When it goes on, `extend` or `draft` mentions it."""

    def end(self, sequence: str, keep: bool) -> None:
        """Drop a sequence; `keep`: its output may serve later ones."""

    def held(self, sequence: str) -> bool:
        """Whether the next step of this sequence should verify drafts, and, if they are not the device's, wait for its
        last token."""

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> Sequence[list[int]]:
        """Drafts for the rows of a step; called once for every step while there are sequences with drafts, except for
        those of `rest`. Of drafts that the device makes only the number counts."""

    def rest(self) -> int:
        """For how many steps nothing here need be called while no sequence is held, asked after `draft`, and after the
        first tokens of a sequence, which are told at once. What else comes meanwhile is told afterwards."""

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        """By row, how many drafts were accepted (None if the row is void), and how many there were: the device may find
        none."""
