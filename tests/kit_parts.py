"""Parts of the conformance kit: all tiers together take as long as many other tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.conformance import KitTarget
from headrace.conformance.tiers import TIERS, tier_of

__all__ = ["PARTS", "PartOfKit", "before", "since"]


@dataclass(frozen=True, eq=False)
class PartOfKit(KitTarget):
    """A platform under test in some tiers only."""

    tiers: tuple[str, ...] = TIERS

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if tier_of(item) in self.tiers]


def before(tier: str) -> tuple[str, ...]:
    return TIERS[: TIERS.index(tier)]


def since(tier: str) -> tuple[str, ...]:
    return TIERS[TIERS.index(tier) :]


PARTS = (before("kv"), ("determinism",), ("kv", "model", "collectives", *since("faults")))
"""Each tier is in one of them; they take about as long as one another."""
