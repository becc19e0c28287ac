"""A model that drafts begins anew when its buffers were lost with the target's, and not for ever."""

from __future__ import annotations

import pytest

from headrace.engine.guarded_rounds import GuardedRounds
from headrace.errors import DeviceLost, OutOfMemory, PlatformError
from headrace.speculation.model_speculator import ModelDrafts


class Rounds(GuardedRounds):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("the drafter d", None, lambda: 0.0)
        self.error = error
        self.begun = 0

    def _begin_anew(self) -> None:
        self.begun += 1
        if self.error is not None:
            raise self.error

    def fail(self) -> None:
        def work() -> ModelDrafts:
            raise PlatformError("a kernel failed")

        assert self._guarded(2, work) == ModelDrafts([[], []], 0.0, [0.0, 0.0])


def test_it_begins_anew_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds()
    for times in range(1, 6):
        rounds.fail()
        assert rounds.ended
        rounds.renew()
        assert (rounds.begun, rounds.ended, rounds.failures) == (min(times, 3), times > 3, times)
    assert caplog.text.count("the drafter d drafts again") == 3
    assert caplog.text.count("the drafter d failed, and drafts no more: a kernel failed") == 5


def test_too_many_failed_steps_end_one_that_has_not_failed_itself(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds()
    for times in range(1, 6):
        rounds.renew()
        assert (rounds.begun, rounds.ended) == (min(times, 3), times > 3)
    assert caplog.text.count("drafts no more: steps have failed more than 3 times") == 1


def test_without_memory_it_drafts_no_more(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(OutOfMemory("9 bytes are needed"))
    rounds.renew()
    assert rounds.ended
    assert "drafts no more, because its cache cannot be made again: 9 bytes are needed" in caplog.text


def test_a_lost_device_is_raised() -> None:
    with pytest.raises(DeviceLost):
        Rounds(DeviceLost("it is gone")).renew()
