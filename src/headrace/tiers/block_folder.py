"""A folder of blocks: one file each, named by its content, shared by all processes of the machine.

FOLDER/LAYOUT/xx/NAME.kv is a sealed block (`transfer/sealed.py`); LAYOUT and NAME are hexadecimal, xx are the first two
digits of NAME. A file is written under another name and renamed when it is whole, so that a process that is killed
leaves no part of a block behind, and two that write the same block write the same bytes. After a loss of power a file
may be torn: its checksum shows it. A file's time of modification is its last use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.errors import TransferError
from headrace.transfer.sealed import HEADER_BYTES, Buffer, Seal, check_payload, seal

__all__ = ["BlockFolder", "StoredBlock"]

_SUFFIX, _PARTIAL = ".kv", ".part"
_ABANDONED = 600.0
"""Seconds after which an unfinished file is removed."""
_TOUCHED = 60.0
"""A use is recorded if the last one was so many seconds ago."""


class StoredBlock(NamedTuple):
    """One file."""

    layout: str
    name: bytes
    size: int
    used: float
    """Seconds since the epoch."""


class BlockFolder:
    """File operations. Threads may call them at once. Raise OSError, and `read` TransferError."""

    def __init__(self, root: Path, layout_id: bytes) -> None:
        self.root, self._layout_id, self.layout = root, layout_id, layout_id.hex()
        self._epoch = (int(time.time()) ^ os.getpid()) & 0xFFFF_FFFF
        self._written = 0

    def prepare(self) -> None:
        """Create the folders of this layout, for this user alone: blocks tell what was asked."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.root / self.layout, *(self.root / self.layout / f"{first:02x}" for first in range(256))):
            path.mkdir(mode=0o700, exist_ok=True)

    def path(self, layout: str, name: bytes) -> Path:
        text = name.hex()
        return self.root / layout / text[:2] / f"{text}{_SUFFIX}"

    def scan(self) -> Iterator[StoredBlock]:
        """All blocks, of other layouts, too. Removes what a killed process has left half-written."""
        for layout in _folders(self.root):
            for part in _folders(layout.path):
                yield from self.scan_part(layout.name, part.name)

    def parts(self) -> Iterator[tuple[str, str, int]]:
        """The subfolders: (layout, name, time of the last change in ns)."""
        for layout in _folders(self.root):
            for part in _folders(layout.path):
                yield layout.name, part.name, part.stat().st_mtime_ns

    def scan_part(self, layout: str, part: str) -> Iterator[StoredBlock]:
        """The blocks of one subfolder."""
        with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(self.root, layout, part)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, ValueError):
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if entry.name.endswith(_SUFFIX):
                        name = bytes.fromhex(entry.name.removesuffix(_SUFFIX))
                        yield StoredBlock(layout, name, status.st_size, status.st_mtime)
                    elif entry.name.endswith(_PARTIAL) and time.time() - status.st_mtime > _ABANDONED:
                        os.unlink(entry.path)

    def read(self, name: bytes, payload_bytes: int) -> Buffer:
        """The payload of a block, checked. Raises FileNotFoundError, TransferError if it is not what was asked for."""
        path = self.path(self.layout, name)
        payload = bytearray(payload_bytes)
        with path.open("rb", buffering=0) as file:
            header = Seal.unpack(file.read(HEADER_BYTES))
            header.expect(self._layout_id, name, payload_bytes)
            view, at = memoryview(payload), 0
            while at < payload_bytes and (count := file.readinto(view[at:])):
                at += count
            if at < payload_bytes:
                raise TransferError(f"the file has {at} bytes of {payload_bytes}")
            used = os.fstat(file.fileno()).st_mtime
        check_payload(header, payload)
        if time.time() - used > _TOUCHED:
            with contextlib.suppress(OSError):
                os.utime(path)
        return payload

    def write(self, name: bytes, tokens: int, payload: Buffer) -> int:
        """Write a block; returns the size of its file."""
        self._written += 1
        path = self.path(self.layout, name)
        partial = path.with_name(f"{name.hex()}.{os.getpid()}-{self._written}{_PARTIAL}")
        header = seal(self._layout_id, name, 0, tokens, payload, self._epoch).pack()
        try:
            with partial.open("wb", buffering=0) as file:
                for data in (header, payload):
                    view = memoryview(data).cast("B")
                    while view:
                        view = view[file.write(view) :]
            partial.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        return HEADER_BYTES + memoryview(payload).nbytes

    def remove(self, layout: str, name: bytes, used: float | None = None) -> bool:
        """Remove a block. `used`: unless it was used later than that. False: it stays."""
        path = self.path(layout, name)
        with contextlib.suppress(FileNotFoundError):
            if used is not None and path.stat().st_mtime > used + 1:
                return False
            path.unlink()
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """True while no other process is inside; False at once if one is."""
        descriptor = os.open(self.root / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)


def _folders(path: str | Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry
