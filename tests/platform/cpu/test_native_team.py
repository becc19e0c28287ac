"""The team: many jobs in order, waiting from several threads, more threads than cores, ends cleanly."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from headrace.errors import PlatformError
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_args import FIXED, Dim, RmsNormArgs
from headrace.platforms.cpu.native_team import Team, TicketPending


def chain(team: Team, length: int) -> np.ndarray:
    """Replaces x by its norm `length` times: each job reads the result of the previous one."""
    x = np.arange(1, 97, dtype=np.float32).reshape(12, 8)
    weight = np.full(8, 1.25, np.float32)
    args = RmsNormArgs(x.ctypes.data, weight.ctypes.data, x.ctypes.data, Dim(FIXED, 12), 8, 0.5)
    function = team.library.kernel("rms_norm")
    for _ in range(length):
        team.run_kernel(function, args, keep=(x, weight))
    out = np.empty_like(x)
    TicketPending(team, team.run_copy(out.ctypes.data, x.ctypes.data, x.nbytes, (x, out)), out).result()
    return out


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_jobs_run_in_order_on_any_number_of_threads(threads: int) -> None:
    one, many = Team(native.load(), 1), Team(native.load(), threads)
    try:
        assert np.array_equal(chain(one, 500), chain(many, 500))
        assert many.busy_seconds > 0
    finally:
        one.close()
        many.close()


def test_parked_threads_wake() -> None:
    team = Team(native.load(), 2)
    try:
        for _ in range(10):
            first = chain(team, 2)
            time.sleep(0.005)  # longer than they spin
            assert np.array_equal(chain(team, 2), first)
    finally:
        team.close()


def test_several_threads_may_submit_and_wait() -> None:
    team, found = Team(native.load(), 2), []
    threads = [threading.Thread(target=lambda: found.append(chain(team, 100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    team.close()
    assert len(found) == 4
    assert all(np.array_equal(x, found[0]) for x in found)


def test_closing_finishes_what_was_submitted() -> None:
    team = Team(native.load(), 2)
    source, target = np.arange(1 << 16, dtype=np.int64), np.zeros(1 << 16, np.int64)
    ticket = team.run_copy(target.ctypes.data, source.ctypes.data, source.nbytes, None)
    team.close()
    assert np.array_equal(source, target)
    assert team.done(ticket)
    with pytest.raises(PlatformError, match="closed"):
        team.run_copy(target.ctypes.data, source.ctypes.data, 8, None)


def test_leaving_a_team_open_does_not_hang_the_interpreter() -> None:
    code = "from headrace.platforms.cpu import native_team as t, native; team = t.Team(native.load(), 2)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_an_instruction_set_that_does_not_run_is_refused() -> None:
    with pytest.raises(PlatformError, match=r"'sve9' does not run here: choose one of v|choose one of g"):
        native.load("sve9")


def test_an_unknown_kernel_names_the_remedy() -> None:
    with pytest.raises(PlatformError, match="install headrace again"):
        native.load().kernel("no_such_kernel")


def test_without_a_library_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find", lambda: None)
    assert "no C++ compiler" in (native.missing() or "")
    with pytest.raises(PlatformError, match="install a compiler"):
        native.load()


def test_structures_have_the_sizes_of_c() -> None:
    assert ctypes.sizeof(RmsNormArgs) == 3 * 8 + 8 + 4 + 4


def test_the_working_time_at_the_end_of_each_job() -> None:
    team = Team(native.load(), 2)
    try:
        assert team.busy_until(0) == 0.0
        marks = []
        for _ in range(5):
            chain(team, 3)
            marks.append(team.latest)
        times = [team.busy_until(mark) for mark in marks]
        known = [value for value in times if value is not None]
        assert known == sorted(known)
        assert len(set(known)) == 5, "each chain took some time"
        assert known[-1] == team.busy_seconds
        assert team.busy_until(team.latest + 1) is None, "there is no such job yet"
        chain(team, 1100)
        assert team.busy_until(marks[-1]) is None, "too many jobs ago"
        assert team.busy_until(team.latest) == team.busy_seconds
    finally:
        team.close()
