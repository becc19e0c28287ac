"""Distributions installed into a folder, and a Python that sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]


def install(source: Path, site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(site), str(source)]
    done = subprocess.run(command, check=False, timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def interpreter(*path: Path) -> Run:
    """`run(*arguments)` runs this Python with folders on its path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, cwd=cwd, check=False, timeout=600, capture_output=True, text=True
        )

    return run
