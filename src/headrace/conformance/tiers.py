"""The order of the tiers: a tier only runs if every earlier tier is green."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

__all__ = ["TIERS", "tier", "tier_of"]

TIERS = ("contract", "copies", "operators", "kv", "model", "collectives", "determinism", "faults", "loading")

T = TypeVar("T", bound=type)


def tier(name: str) -> Callable[[T], T]:
    """Class decorator: every test of the class belongs to the tier."""
    if name not in TIERS:
        raise ValueError(f"tier {name!r}: choose one of {', '.join(TIERS)}")

    def mark(cls: T) -> T:
        for key, value in vars(cls).items():
            if key.startswith("test_") and callable(value):
                value.conformance_tier = name
        return cls

    return mark


def tier_of(item: pytest.Item) -> str | None:
    """The tier of a collected test; None for a test outside the kit."""
    function: Any = getattr(item, "function", None)
    found = getattr(function, "conformance_tier", None)
    return str(found) if found else None
