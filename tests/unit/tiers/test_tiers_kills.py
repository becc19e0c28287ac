"""A few of the kills of `ci/disk_kills.py`, which makes a thousand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "ci" / "disk_kills.py"


def test_killed_writers_leave_no_wrong_block() -> None:
    # A process of its own: this one has threads, which a fork does not copy.
    done = subprocess.run([sys.executable, str(SCRIPT), "15"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
