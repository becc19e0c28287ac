"""A constraint that waits for the end of the reasoning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.grammar.dormant import with_reasoning
from headrace.types import Constraint

OPEN, CLOSE, OTHER = 33, 34, 2


class OnlySeven:
    """Allows token 7 alone, once."""

    def __init__(self) -> None:
        self.stopped = False

    @property
    def mask(self) -> npt.NDArray[np.uint32]:
        return np.array([0 if self.stopped else 1 << 7, 0], np.uint32)

    @property
    def accepting(self) -> bool:
        return self.stopped

    def advance(self, token: int) -> str | None:
        if token != 7:
            return f"token {token} is not allowed"
        self.stopped = True
        return None


def allowed(mask: npt.NDArray[np.uint32]) -> list[int]:
    return [token for token in range(64) if mask[token // 32] >> np.uint32(token % 32) & 1]


def test_without_reasoning_it_is_the_matcher_itself() -> None:
    inner = OnlySeven()
    assert with_reasoning(inner, Constraint("regex", "7")) is inner


def test_everything_is_allowed_until_the_reasoning_ends() -> None:
    matcher = with_reasoning(OnlySeven(), Constraint("regex", "7", after=(CLOSE,)))
    for token in (OTHER, 7, OPEN):
        assert len(allowed(matcher.mask)) == 64
        assert matcher.accepting
        assert matcher.advance(token) is None
    assert matcher.advance(CLOSE) is None
    assert allowed(matcher.mask) == [7]
    assert not matcher.accepting
    assert matcher.advance(7) is None
    assert matcher.stopped


def test_the_first_token_begins_the_reasoning_or_the_text() -> None:
    constraint = Constraint("regex", "7", after=(CLOSE,), opens=(OPEN,))
    matcher = with_reasoning(OnlySeven(), constraint)
    assert allowed(matcher.mask) == [7, OPEN]
    assert matcher.advance(OPEN) is None
    assert len(allowed(matcher.mask)) == 64
    assert matcher.advance(CLOSE) is None
    assert allowed(matcher.mask) == [7]

    matcher = with_reasoning(OnlySeven(), constraint)
    assert matcher.advance(7) is None
    assert matcher.stopped
    assert with_reasoning(OnlySeven(), constraint).advance(OTHER) == "token 2 is not allowed"
