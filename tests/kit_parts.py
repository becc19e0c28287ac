"""Parts of the conformance kit: all tiers together take as long as many other tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from headrace.conformance import KitTarget
from headrace.conformance.tiers import TIERS, tier_of

__all__ = ["PARTS", "PartOfKit", "before", "since"]


@dataclass(frozen=True, eq=False)
class PartOfKit(KitTarget):
    """A platform under test in some tiers only, and in some tests only of a tier in `only`: those whose names begin as
    it says."""

    tiers: tuple[str, ...] = TIERS
    only: Mapping[str, str] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._has(item.name, tier_of(item))]

    def _has(self, name: str, tier: str | None) -> bool:
        return tier in self.tiers and name.startswith(self.only.get(tier, ""))


def before(tier: str) -> tuple[str, ...]:
    return TIERS[: TIERS.index(tier)]


def since(tier: str) -> tuple[str, ...]:
    return TIERS[TIERS.index(tier) :]


PARTS = (before("kv"), ("determinism",), ("kv", "model", "collectives", *since("faults")))
"""Each tier is in one of them; they take about as long as one another."""
