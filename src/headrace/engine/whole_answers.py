"""Answers that their callers read as a whole: the engine keeps them until they end, and sends one event each."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.outcome import merged
from headrace.types import Delta

__all__ = ["WholeAnswers"]


class WholeAnswers:
    """Sequences that are under way, with what they have generated."""

    def __init__(self) -> None:
        self._held: dict[str, Delta | None] = {}

    def begin(self, ids: Iterable[str]) -> None:
        self._held.update(dict.fromkeys(ids))

    def forget(self, ids: Iterable[str]) -> None:
        for one in ids:
            self._held.pop(one, None)

    def pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas that are sent now."""
        if not self._held:
            return deltas
        return [found for delta in deltas if (found := self._taken(delta)) is not None]

    def _taken(self, delta: Delta) -> Delta | None:
        name = delta.request_id
        if name not in self._held:
            return delta
        before = self._held[name]
        found = delta if before is None else merged([before, delta])
        if found.finish_reason is None:
            self._held[name] = found
            return None
        del self._held[name]
        return found
