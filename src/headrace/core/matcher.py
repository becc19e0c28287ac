"""What the scheduler needs of a grammar: which tokens may come next, one token after another."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Matcher", "advance"]


class Matcher(Protocol):
    """The state of one constrained sequence. It holds the mask for the position that is sampled next.

    Called by the engine's thread alone once it has been handed over.
    """

    @property
    def mask(self) -> npt.NDArray[np.uint32]:
        """[ceil(V / 32)]; bit t % 32 of word t // 32 is set if token t may come next. End tokens are set only if the text so
        far is complete. Valid until the next `advance`; empty of bits once `stopped`."""

    @property
    def accepting(self) -> bool:
        """The text so far is complete: an end may follow."""

    @property
    def stopped(self) -> bool:
        """The text is complete and nothing but an end may follow."""

    def advance(self, token: int) -> str | None:
        """Take in the token that was sampled, and make the next mask. Returns the reason if the sequence cannot go on: the
        token was not allowed, or a limit of the grammar was hit. An end token that was allowed stops it."""


def advance(matcher: Matcher, token: int) -> str | None:
    """`Matcher.advance`; a fault of a grammar library, too, is a reason for its own sequence alone to end."""
    try:
        return matcher.advance(token)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
