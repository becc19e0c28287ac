"""One thread of torch; examples that hypothesis draws are the same in every run, and no clock judges them; no test
leaves the levels of logs changed."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator

# Before anything loads torch, and for the processes that tests start. On tensors as small as here more threads do
# nothing but wait for one another in busy loops: eight times the processor time on two cores, more on more. The native
# kernels have a team of their own, and what must not depend on torch's threads is tested with several
# (`test_kernels_reproducible`).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of processes are started: each would compile all that it imports, and each run would rewrite all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from file_scheduling import FileScheduling
from hypothesis import HealthCheck, settings

sys.dont_write_bytecode = False
settings.register_profile(
    "headrace",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """The command line sets the levels of the process's logs."""
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    before = ours.level, root.level
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected lives as long as the process: no walk of the garbage collector finds anything in it to free,
    neither while it is made nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
