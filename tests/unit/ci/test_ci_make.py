"""What `make` does, as it says itself without doing it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def planned(target: str, venv: Path) -> list[str]:
    """The commands that `make` would run, without those of `lint` and of tests."""
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={venv}", target]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return [line for line in found.stdout.splitlines() if "pip install" in line or line.startswith("echo")]


@pytest.mark.parametrize("target", ["run", "install"])
def test_the_package_is_built_once_and_announced(target: str, tmp_path: Path) -> None:
    lines = planned(target, tmp_path / "venv")
    (built,) = [number for number, line in enumerate(lines) if line.endswith(" -e .")]
    (said,) = [number for number, line in enumerate(lines) if "compiling the CPU kernels" in line]
    assert said < built
    assert "minutes" in lines[said]
    # pip's own lines tell how far it is.
    assert "--quiet" not in lines[built]


def test_what_run_has_built_is_not_built_again_for_the_tests(tmp_path: Path) -> None:
    (tmp_path / ".serving").touch()
    lines = planned("install", tmp_path)
    assert [line for line in lines if "headrace[dev]" in line]
    assert not [line for line in lines if " -e " in line]


def test_nothing_is_installed_again(tmp_path: Path) -> None:
    for at, name in enumerate((".serving", ".installed")):
        (tmp_path / name).touch()
        later = (tmp_path / name).stat().st_mtime + at
        os.utime(tmp_path / name, (later, later))
    assert planned("install", tmp_path) == []
