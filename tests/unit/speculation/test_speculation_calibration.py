"""A drafter's own estimates are corrected by what is accepted."""

from __future__ import annotations

import random
from itertools import accumulate
from operator import mul

import pytest

from headrace.speculation.calibration import Calibration

DEPTH = 5


def learnt(said: float, true: float, rounds: int = 3000) -> Calibration:
    """After rounds in which each token is accepted with probability `true` and estimated with `said`."""
    found, rng = Calibration(DEPTH), random.Random(1)
    survival = list(accumulate([said] * DEPTH, mul))
    for _ in range(rounds):
        right = next((at for at in range(DEPTH) if rng.random() >= true), DEPTH)
        found.verified(survival, DEPTH, right)
    return found


def test_without_experience_nothing_is_changed() -> None:
    assert Calibration(DEPTH).corrected([0.9, 0.5, 0.1]) == pytest.approx([0.9, 0.5, 0.1])


@pytest.mark.parametrize(("said", "true"), [(0.95, 0.6), (0.3, 0.8), (0.7, 0.7), (1.0, 0.5), (0.0, 0.6)])
def test_estimates_become_what_is_accepted(said: float, true: float) -> None:
    survival = list(accumulate([said] * DEPTH, mul))
    found = learnt(said, true).corrected(survival)
    assert found[0] == pytest.approx(true, abs=0.08)
    assert found[1] == pytest.approx(true**2, abs=0.1)
    assert found == sorted(found, reverse=True)


def test_surer_estimates_stay_surer() -> None:
    calibration = learnt(0.9, 0.5)
    assert calibration.corrected([0.99])[0] > calibration.corrected([0.9])[0] > calibration.corrected([0.2])[0]


def test_what_is_after_a_wrong_token_says_nothing() -> None:
    calibration = Calibration(DEPTH)
    for _ in range(50):
        calibration.verified([0.5, 0.25, 0.125], 3, 0)
    first, second, third = calibration.corrected([0.5, 0.25, 0.125])
    assert first < 0.2
    assert second / first == pytest.approx(0.5)
    assert third / second == pytest.approx(0.5)


def test_a_bad_start_is_forgotten() -> None:
    calibration = learnt(0.9, 0.05)
    low = calibration.corrected([0.9])[0]
    for _ in range(2000):
        calibration.skipped()
    assert low < 0.2
    assert calibration.corrected([0.9])[0] > 0.88


def test_drafts_that_were_not_verified_say_nothing() -> None:
    calibration = Calibration(DEPTH)
    calibration.verified([0.5, 0.25], 0, 0)
    assert calibration.corrected([0.5, 0.25]) == pytest.approx([0.5, 0.25])
