"""The core does the same under `python -O`, which leaves out every assert."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optimised_run


def test_the_core_does_the_same_without_its_asserts() -> None:
    command = [sys.executable, "-O", str(Path(optimised_run.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == optimised_run.outcome()
