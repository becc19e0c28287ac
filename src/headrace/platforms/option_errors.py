"""What a platform says to an option that it does not have."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import PlatformError
from headrace.suggestions import did_you_mean

__all__ = ["unknown_option"]


def unknown_option(platform: str, name: str, known: Sequence[str]) -> PlatformError:
    """The error for `--platform-option NAME=…`, with the names that there are."""
    there = ", ".join(known)
    return PlatformError(f"{platform}: unknown option {name!r}; there are {there}{did_you_mean(name, known)}")
