"""Whether an engine that ended is started again: by table."""

from __future__ import annotations

import pytest

from headrace.scale.restarts import Ended, RestartPolicy, Verdict, after_end

POLICY = RestartPolicy(most=3, first=1.0, longest=5.0, steady=60.0)


@pytest.mark.parametrize(
    ("before", "ended", "verdict"),
    [
        (0, Ended(5, True), Verdict(1, 0.0)),
        (1, Ended(5, True), Verdict(2, 1.0)),
        (2, Ended(5, False), Verdict(3, 3.0)),
        (3, Ended(5, False), Verdict(4, None)),
        # It was ready for long: a new row begins.
        (3, Ended(61, True), Verdict(1, 0.0)),
        (3, Ended(60, True), Verdict(4, None)),
        # Loading for long and never being ready is no new row.
        (3, Ended(61, False), Verdict(4, None)),
        # It says that another start would end in the same way.
        (0, Ended(1, False, final=True), Verdict(1, None)),
        (0, Ended(5, True, final=True), Verdict(1, 0.0)),
    ],
)
def test_what_follows_on_an_end(before: int, ended: Ended, verdict: Verdict) -> None:
    assert after_end(POLICY, before, ended) == verdict


def test_delays_grow_to_the_longest() -> None:
    policy = RestartPolicy(most=10)
    delays = [after_end(policy, before, Ended(1, False)).delay for before in range(11)]
    assert delays == [0, 1, 3, 7, 15, 30, 30, 30, 30, 30, None]


def test_no_restarts_at_all() -> None:
    assert after_end(RestartPolicy(most=0), 0, Ended(5, True)).delay is None
