"""Ends while the team has work: of the process, of the last reference to the team, by a fork; and threads that cannot
start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.platforms.cpu import native

pytestmark = pytest.mark.skipif(native.missing() is not None, reason="needs the native library")

START = """
import os, resource, sys, threading, time
import numpy as np
from headrace.errors import PlatformError
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_args import FIXED, Dim, RmsNormArgs
from headrace.platforms.cpu.native_team import Team

def launch(team, jobs):
    x, w = np.ones((4000, 512), np.float32), np.ones(512, np.float32)
    args = RmsNormArgs(x.ctypes.data, w.ctypes.data, x.ctypes.data, Dim(FIXED, len(x)), 512, 0.5)
    for _ in range(jobs):
        ticket = team.run_kernel(team.library.kernel("rms_norm"), args, keep=(x, w))
    return ticket

def refused(function, *args):
    try:
        function(*args)
    except PlatformError as error:
        print(error)
    else:
        sys.exit("not refused")

threads = int(sys.argv[1])
"""
SCRIPTS = {
    "the process exits": """
from headrace.platforms.cpu.tape import Tape, _Entry
team = Team(native.load(), threads)
x, w = np.ones((400, 512), np.float32), np.ones(512, np.float32)
tape = Tape(team)
for _ in range(300):
    args = RmsNormArgs(x.ctypes.data, w.ctypes.data, x.ctypes.data, Dim(FIXED, len(x)), 512, 0.5)
    tape.add("rms_norm", args, (x, w), _Entry("rms_norm", (), (), 0, "", "", 0))
for _ in range(3): team.run_tape(tape.handle, None, None, 0, tape)
""",
    "nobody refers to it, and while threads wait": """
launch(Team(native.load(), threads), 30)
team = Team(native.load(), threads)
waiters = [threading.Thread(target=team.wait, args=(launch(team, 10),)) for _ in range(4)]
for waiter in waiters: waiter.start()
team.close()
for waiter in waiters: waiter.join()
team.wait(1)
refused(launch, team, 1)
""",
    "a daemon submits to the end": """
team = Team(native.load(), threads)
def forever():
    try:
        while True: team.wait(launch(team, 1))
    except PlatformError: pass
for _ in range(2): threading.Thread(target=forever, daemon=True).start()
launch(team, 3)
""",
}


def run(script: str, threads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + script, str(threads)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("what", SCRIPTS)
def test_ends_in_order_while(what: str) -> None:
    done = run(SCRIPTS[what], 3)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_is_refused_and_exits() -> None:
    done = run(
        """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12 and later
team = Team(native.load(), threads)
ticket = launch(team, 200)
child = os.fork()
if not child:
    refused(launch, team, 1)
    refused(team.wait, ticket)
    team.close()
    sys.exit(7)  # through everything that runs at exit
code = os.waitpid(child, 0)[1]
team.wait(launch(team, 1))
sys.exit(os.waitstatus_to_exitcode(code))
""",
        2,
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert "this process was forked" in done.stdout
    assert "the process was forked after the device was opened" in done.stdout


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer reserves all addresses"
)
def test_threads_that_cannot_start_are_an_error_and_leave_nothing() -> None:
    done = run(
        """
_, hard = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
native.load()
def count(): return len(os.listdir("/proc/self/task"))
before = count()
resource.setrlimit(resource.RLIMIT_AS, (used + (2248 << 20), hard))  # scratch for 32, but not their stacks
refused(Team, native.load(), 32)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
for _ in range(6000):  # The system lists a thread for a moment after its end.
    if count() == before: break
    time.sleep(0.01)
else: sys.exit(f"{count()} threads are left of {before}")
Team(native.load(), threads).close()
""",
        2,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "cannot start 32 threads: lower --threads" in done.stdout
