"""Rounds of a model that drafts: timed, and ended by the first one that fails.

A device that takes buffers with every step may have lost those of the model, too, when a step fails. Then the target
gets a new cache, and the model begins anew with it, a few times.

A pass that such a device refuses takes nothing. One that fails when it runs has the history of tokens, where the next
step finds the drafts: that step is launched before the failure is known, so it fails as well. A copy of the history
would not help: what the step reads is what the pass has written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.errors import DeviceLost, HeadraceError, PlatformError
from headrace.speculation.model_speculator import ModelDrafts

__all__ = ["GuardedRounds"]

_log = logging.getLogger(__name__)
_RENEWALS = 3
"""Times that a model begins anew: what fails again and again costs the target a step each time."""


class GuardedRounds:
    """The base of `speculation.model_speculator.DraftingModel`s. If a round fails, the error is logged and no more
    drafts are made, unless `renew` is called; a lost device is raised."""

    def __init__(self, what: str, busy_seconds: Callable[[], float] | None, clock: Callable[[], float]) -> None:
        """`what`: the model, for the log. `busy_seconds`: the device's counter of its working time."""
        self.failures = 0
        self.ended = False
        """No more drafts are made."""
        self._renewals = 0
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
            self.failures, self.ended = self.failures + 1, True
            trace = None if isinstance(error, HeadraceError) else error
            _log.error("%s failed, and drafts no more: %s", self._what, error, exc_info=trace)
            return ModelDrafts([[] for _ in range(count)], self._clock() - start, [0.0] * count)
        finally:
            self.wall += self._clock() - start
            self.busy += self._busy() - busy

    def renew(self) -> None:
        """For `Runner.when_recovered`: the target's cache was made again, and steps that are in flight give nothing.
        Raises DeviceLost."""
        if self._renewals == _RENEWALS:
            if not self.ended:
                _log.error("%s drafts no more: steps have failed more than %d times", self._what, _RENEWALS)
            self.ended = True
            return
        self._renewals += 1
        try:
            self._begin_anew()
        except DeviceLost:
            raise
        except PlatformError as error:
            self.ended = True
            _log.error("%s drafts no more, because its cache cannot be made again: %s", self._what, error)
            return
        if self.ended:
            _log.warning("%s drafts again: what it computes with was made again, as the model's", self._what)
        self.ended = False

    def _begin_anew(self) -> None:
        """Forget what was computed, and make the device's buffers again. Raises PlatformError."""

    def _busy(self) -> float:
        return self._busy_seconds() if self._busy_seconds is not None else 0.0
