"""Rounds of a model that drafts: timed, and ended for good by the first one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.errors import DeviceLost, HeadraceError
from headrace.speculation.model_speculator import ModelDrafts

__all__ = ["GuardedRounds"]

_log = logging.getLogger(__name__)


class GuardedRounds:
    """The base of `speculation.model_speculator.DraftingModel`s. If a round fails, the error is logged once and no more
    drafts are made; a lost device is raised."""

    def __init__(self, what: str, busy_seconds: Callable[[], float] | None, clock: Callable[[], float]) -> None:
        """`what`: the model, for the log. `busy_seconds`: the device's counter of its working time."""
        self.failures = 0
        self.wall = self.busy = 0.0
        """Seconds that all rounds together have taken, and in which the device worked on them."""
        self.unwaited = 0.0
        """Those of rounds that are launched and not waited for, as far as they can be foretold."""
        self._what, self._busy_seconds, self._clock = what, busy_seconds, clock

    def _guarded(self, count: int, work: Callable[[], ModelDrafts]) -> ModelDrafts:
        """What `work` drafts for `count` sequences; nothing if it fails. Raises DeviceLost."""
        start, busy = self._clock(), self._busy()
        try:
            return work()
        except DeviceLost:
            raise
        # Answers do not depend on drafts: whatever has failed here must not end the target's requests.
        except Exception as error:
            self.failures += 1
            trace = None if isinstance(error, HeadraceError) else error
            _log.error("%s failed, and drafts no more: %s", self._what, error, exc_info=trace)
            return ModelDrafts([[] for _ in range(count)], self._clock() - start, [0.0] * count)
        finally:
            self.wall += self._clock() - start
            self.busy += self._busy() - busy

    def _busy(self) -> float:
        return self._busy_seconds() if self._busy_seconds is not None else 0.0
