"""Numbers with their nouns, for messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 block`, `2 blocks`; a plural that does not end in one more "s" is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
