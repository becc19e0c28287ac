"""Log levels of our loggers and of other libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from headrace.cli.logs import set_up_logging
set_up_logging(quiet="quiet" in sys.argv)
for name in ("headrace.x", "library"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), level)(f"{name} {level}")
"""
EVERYTHING = [f"{name} {level}" for name in ("headrace.x", "library") for level in ("debug", "info", "warning")]


@pytest.mark.parametrize(
    ("level", "arguments", "heard"),
    [
        ("debug", [], EVERYTHING),
        ("debug", ["quiet"], EVERYTHING),
        ("info", [], ["headrace.x info", "headrace.x warning", "library warning"]),
        ("info", ["quiet"], ["headrace.x warning", "library warning"]),
        ("warning", [], ["headrace.x warning", "library warning"]),
        ("error", [], []),
    ],
)
def test_levels(level: str, arguments: list[str], heard: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"HEADRACE_LOG": level},
    )
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == heard
    assert done.stdout == ""
