"""The contract of drafters that work on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["NO_GUESS", "Guess", "HostDrafter", "MakeHostDrafter"]


class Guess(NamedTuple):
    """The tokens that may follow the committed ones."""

    tokens: list[int]
    survival: list[float]
    """For each token, the estimated probability that it and all tokens before it are accepted; never rises."""
    method: str = ""
    """The drafter that made it, for the metrics: `name`, or that of a part of it."""


NO_GUESS = Guess([], [])


@runtime_checkable
class HostDrafter(Protocol):
    """Guesses tokens from what is known on the host. One thread calls everything, between two steps of the device, so
    each call takes microseconds: the work is done as tokens arrive, and nothing walks over a whole history.

    A drafter judges its own guesses. `extend` tells what followed, whether the guess was verified or not, because the
    output does not depend on that; so acceptance is measured even while nothing is speculated.
    """

    name: str

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        """Take up a sequence with a new id. `namespace`: its adapter and salt; tokens are never carried from one
        namespace to another. `predicted`: what the caller expects as the output, if anything. It reads the whole prompt
        once, in about 0.3 µs a token."""

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        """Add committed tokens of the output, at least one."""

    def guess(self, sequence: str, most: int) -> Guess:
        """Guess at most `most` tokens that follow the committed ones. It may be called any number of times."""

    def end(self, sequence: str, keep: bool) -> None:
        """Drop a sequence. `keep`: its output may serve later sequences of the same namespace."""


class MakeHostDrafter(Protocol):
    """What a plugin of the hook `headrace_drafters` names: makes a drafter for one engine."""

    def __call__(self) -> HostDrafter: ...
