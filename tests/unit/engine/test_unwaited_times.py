"""The times of rounds that nothing waits for, from a device that knows the time of each launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.engine.unwaited_rounds import UnwaitedRounds


class Result:
    def done(self) -> bool:
        return True

    def result(self) -> npt.NDArray[np.int32]:
        return np.zeros(1, np.int32)


class Times:
    """Each launch takes a second; what is behind `reached` is not done."""

    def __init__(self) -> None:
        self.reached = self.launched = 0

    def mark(self) -> int:
        self.launched += 1
        return self.launched

    def busy_until(self, mark: int) -> float | None:
        return float(mark) if mark <= self.reached else None


class Rounds(UnwaitedRounds):
    result = Result

    def leave(self, passes: list[tuple[int, int]]) -> float:
        marks = [self._times.mark() for _ in range(1 + len(passes))]
        return self._leave([self.result()] * len(passes), passes, marks)


def test_the_passes_are_learnt_when_they_are_done() -> None:
    times = Times()
    rounds = Rounds("the model", True, times=times)
    for _ in range(4):
        rounds.leave([(3, 0), (2, 0)])
    rounds.learn_times()
    assert not rounds.cost.known(3)
    assert rounds.unwaited == 0.0
    times.reached = 8
    rounds.learn_times()
    assert rounds.unwaited == 4.0, "two rounds are done"
    times.reached = 99
    rounds.learn_times()
    rounds.learn_times()
    assert rounds.unwaited == 8.0, "each is learnt once"
    assert rounds.cost.seconds(3) == rounds.cost.seconds(2) == 1.0
    assert rounds.leave([(3, 0), (2, 0)]) == 2.0


def test_a_round_whose_time_is_forgotten_keeps_no_other_from_being_learnt() -> None:
    class Forgetful(Times):
        def busy_until(self, mark: int) -> float | None:
            return None if mark < 4 else super().busy_until(mark)

    times = Forgetful()
    rounds = Rounds("the model", True, times=times)
    for _ in range(3):
        rounds.leave([(3, 0), (2, 0)])
    times.reached = 6
    rounds.learn_times()
    assert rounds.unwaited == 2.0, "the second is learnt, and the third is not done"


def test_a_round_that_ends_while_it_is_looked_at_is_learnt_too() -> None:
    """It is not done when the times are asked for, and done when its result is."""
    times = Times()

    class Ending(Result):
        def done(self) -> bool:
            times.reached = times.launched
            return True

    class Ended(Rounds):
        result = Ending

    rounds = Ended("the model", True, times=times)
    for _ in range(3):
        rounds.leave([(3, 0), (2, 0)])
        rounds._check_finished()
    assert rounds.unwaited == 6.0
    assert rounds.cost.known(3)
    assert not rounds._unread


def test_no_round_is_waited_for_to_be_measured() -> None:
    rounds = Rounds("the model", True, times=Times())
    assert not any(rounds._measures([3, 2]) for _ in range(200))
    without = Rounds("the model", True)
    assert any(without._measures([3, 2]) for _ in range(200))


def test_without_such_a_device_the_time_is_what_was_foretold() -> None:
    rounds = Rounds("the model", True)
    for _ in range(3):
        rounds.cost.observe(3, 0, 0.25)
    assert rounds.leave([(3, 0)]) == 0.25
    assert rounds.unwaited == 0.25


def test_rounds_in_flight_at_a_failed_step_count_and_teach_nothing() -> None:
    times = Times()
    rounds = Rounds("the model", True, times=times)
    for _ in range(4):
        rounds.leave([(3, 0), (2, 0)])
    times.reached = 3
    rounds.renew()
    assert rounds.unwaited == 2.0, "the first was done"
    times.reached = 99
    rounds.learn_times()
    rounds.learn_times()
    assert rounds.unwaited == 8.0, "the others end behind the failure"
    assert not rounds.cost.known(3)


def test_rounds_whose_times_a_failure_has_lost_are_not_kept_for_ever() -> None:
    rounds = Rounds("the model", True, times=Times())
    for _ in range(200):
        rounds.leave([(3, 0)])
    rounds.renew()
    assert len(rounds._broken) == 64


def test_a_first_launch_that_compiles_counts_and_changes_no_prediction() -> None:
    """The device is busy meanwhile, and the next launch of that shape is not: a median does not see it."""

    class Compiling(Times):
        def busy_until(self, mark: int) -> float | None:
            return None if mark > self.reached else float(mark) + (30.0 if mark > 1 else 0.0)

    times = Compiling()
    rounds = Rounds("the model", True, times=times)
    for _ in range(3):
        rounds.leave([(3, 0)])
    times.reached = 99
    rounds.learn_times()
    assert rounds.unwaited == 33.0
    assert rounds.cost.seconds(3) == 1.0
