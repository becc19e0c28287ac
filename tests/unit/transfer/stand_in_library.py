"""A transfer library without a native part: it reads other processes' shelves through files, and fails when told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = "HEADRACE_STAND_IN_LIBRARY"
"""Environment variable: a folder. A file `hang` or `crash` there makes the next read do that."""


class StandInLibrary:
    """Its description of a shelf is the path of the process's memory map."""

    def open(self, host: str, shelf: memoryview, staging: memoryview, slot_bytes: int) -> bytes:
        import ctypes

        self._staging, self._slot_bytes = staging, slot_bytes
        self._shelf = shelf
        address = ctypes.addressof(ctypes.c_char.from_buffer(shelf))
        return f"{os.getpid()}:{address}".encode()

    def attach(self, description: bytes) -> tuple[int, int]:
        process, _, address = description.decode().partition(":")
        return int(process), int(address)

    def start(self, peer: tuple[int, int], there: Sequence[int], here: Sequence[int]) -> None:
        folder = Path(os.environ[FOLDER])
        if (folder / "crash").exists():
            (folder / "crash").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if (folder / "hang").exists():
            (folder / "hang").unlink(missing_ok=True)
            time.sleep(3600)
        with Path(f"/proc/{peer[0]}/mem").open("rb", buffering=0) as memory:
            for far, near in zip(there, here, strict=True):
                memory.seek(peer[1] + far)
                data = memory.read(self._slot_bytes)
                self._staging[near : near + len(data)] = data

    def done(self, read: None) -> bool:
        return True


class BrokenLibrary:
    def open(self, host: str, shelf: memoryview, staging: memoryview, slot_bytes: int) -> bytes:
        raise OSError("no such transport")
