"""What a user may have meant: the nearest of some names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is most like a word; None if none is."""
    import difflib

    found = difflib.get_close_matches(word, sorted(set(choices)), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    found = nearest(word, choices)
    return f"; did you mean {found}?" if found else ""
