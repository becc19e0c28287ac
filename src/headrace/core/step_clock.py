"""The steps that a scheduler has launched and committed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["StepClock"]


@dataclass(slots=True)
class StepClock:
    """Counts steps from 1."""

    now: float = 0.0
    """When the last step was scheduled; monotonic seconds."""
    launched: int = 0
    committed: int = 0
    in_flight: deque[int] = field(default_factory=deque)
    """Steps that are launched and neither committed nor failed."""

    def launch(self) -> None:
        self.launched += 1
        self.in_flight.append(self.launched)

    def retire(self, step: int) -> None:
        """A step was committed, or has failed."""
        self.in_flight.remove(step)
        self.committed = max(self.committed, step)
