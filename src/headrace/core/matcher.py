"""The scheduler's interface to a grammar: the tokens that are allowed next."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Matcher", "advance", "allows", "forced"]

_log = logging.getLogger(__name__)


class Matcher(Protocol):
    """The state of one constrained sequence, with the mask for the position that is sampled next.

    Only the engine's thread calls it after it has been passed to the scheduler.
    """

    @property
    def mask(self) -> npt.NDArray[np.uint32]:
        """[ceil(V / 32)]; bit t % 32 of word t // 32 is set if token t is allowed next. End tokens are only set if the
        text so far is complete. Valid until the next `advance`; no bits are set after `stopped`."""

    @property
    def accepting(self) -> bool:
        """True if the text so far is complete: an end is allowed."""

    @property
    def stopped(self) -> bool:
        """True if the text is complete and only an end is allowed."""

    def forced(self) -> Sequence[int]:
        """Tokens that the text must continue with, in the tokenization that the model knows; empty if there is a choice
        or the tokens cannot be told. A function of the grammar and the text alone. Not called after `stopped`."""

    def copy(self) -> Matcher:
        """An independent matcher of the same text, to look ahead with."""

    def advance(self, token: int) -> str | None:
        """Add the sampled token and compute the next mask. Returns the reason if the sequence cannot continue: the
        token was not allowed, or the grammar reached a limit. An allowed end token stops it."""


def allows(matcher: Matcher, token: int) -> bool:
    """Whether a token may come next."""
    return bool(matcher.mask[token // 32] >> np.uint32(token % 32) & 1)


def forced(matcher: Matcher) -> list[int]:
    """`Matcher.forced`. A fault of a grammar library forces nothing: the mask of the next token decides alone."""
    try:
        return list(matcher.forced())
    except Exception as error:
        _log.warning("a grammar's forced tokens are not used: %s: %s", type(error).__name__, error)
        return []


def advance(matcher: Matcher, token: int) -> str | None:
    """`Matcher.advance`; a fault of a grammar library, too, is a reason for its own sequence alone to end."""
    try:
        return matcher.advance(token)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
