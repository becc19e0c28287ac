"""Where the team's threads run: on what the affinity mask allows, no more of them than a container's limit is worth."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.platforms.cpu import native, native_team
from headrace.platforms.cpu.native_args import FIXED, Dim, RmsNormArgs
from headrace.platforms.cpu.native_team import Team, allowed_cores

needs_library = pytest.mark.skipif(
    native.missing() is not None or not hasattr(os, "sched_getaffinity"), reason="needs the native library on Linux"
)


def tasks() -> set[int]:
    """The teams' threads of this process."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir() if "hr-cpu-" in (task / "comm").read_text()}


def masks_of_a_team() -> list[set[int]]:
    """Affinity of each thread of a default team, once all of them have run a kernel."""
    before, team = tasks(), Team(native.load())
    x = np.ones((8, 8), np.float32)
    args = RmsNormArgs(*[x.ctypes.data] * 3, Dim(FIXED, 8), 8, 0.5)
    team.wait(team.run_kernel(team.library.kernel("rms_norm"), args, keep=x))
    found = [os.sched_getaffinity(task) for task in tasks() - before]
    assert len(found) == team.threads
    team.close()
    return found


@needs_library
def test_a_limit_lowers_the_team_and_pins_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_team, "cpu_quota", lambda: 1)
    assert len(allowed_cores()) == 1
    assert masks_of_a_team() == [os.sched_getaffinity(0)]


@needs_library
def test_a_full_team_is_pinned_each_thread_to_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_team, "cpu_quota", lambda: None)
    assert sorted(masks_of_a_team(), key=min) == [{core} for core in sorted(allowed_cores())]


@needs_library
def test_the_mask_of_the_process_is_the_teams() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "from headrace.platforms.cpu import native\nfrom headrace.platforms.cpu.native_team import Team\n"
        "print(Team(native.load()).threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "1\n"
