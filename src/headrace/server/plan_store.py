"""Plans that clients have stored, by owner and the hashes of their documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["PlanStore", "StoredPlan"]

MOST_PLANS, MOST_BYTES = 256, 64 << 20


@dataclass(frozen=True, slots=True)
class StoredPlan:
    plan: Any
    """A checked `lang.plan.Plan`: this module does not import the language."""
    reply: Any
    """What is told of it (`program_schemas.PlanReply`)."""
    size: int
    """Bytes of the document."""


class PlanStore:
    """In memory; if there are too many, those go first that have not been used for the longest time."""

    def __init__(self, most: int = MOST_PLANS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._plans: dict[tuple[str, str], StoredPlan] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._plans)

    def put(self, owner: str, name: str, stored: StoredPlan) -> None:
        self.remove(owner, name)
        self._plans[owner, name] = stored
        self._bytes += stored.size
        while len(self._plans) > self._most or (self._bytes > self._most_bytes and len(self._plans) > 1):
            self.remove(*next(iter(self._plans)))

    def get(self, owner: str, name: str) -> StoredPlan | None:
        found = self._plans.pop((owner, name), None)
        if found is not None:
            self._plans[owner, name] = found
        return found

    def remove(self, owner: str, name: str) -> bool:
        found = self._plans.pop((owner, name), None)
        if found is not None:
            self._bytes -= found.size
        return found is not None
