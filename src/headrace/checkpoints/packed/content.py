"""Identifies a checkpoint by the contents of its files.

A file is read once; later its path, size and times identify it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.checkpoints.files import read_json
from headrace.checkpoints.packed.atomic import replacing
from headrace.errors import CheckpointError

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Contents", "checkpoint_files"]

_PIECE = 8 << 20
_SETTLED_NS = 2 * 10**9
"""A file that changed so recently may change again within the same clock tick: its digest is not stored."""
_MOST_KEPT = 4096


def checkpoint_files(path: Path) -> list[Path]:
    """The file, or the files that a directory's weights and settings are read from, by name."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in (".safetensors", ".json") and file.is_file())


class Contents:
    """Digests of files, stored in `index`: a JSON object from absolute path to [device, inode, size, mtime, ctime,
    digest]."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._known = _read(index)

    def known(self, files: Sequence[Path]) -> str | None:
        """The digest of all files, if each was read before and has not changed since. Raises OSError."""
        digests = []
        for file in files:
            entry = self._known.get(str(file.absolute()))
            if entry is None or entry[:5] != _stamp(file):
                return None
            digests.append(entry[5])
        return _together(files, digests)

    def digest(self, files: Sequence[Path]) -> str:
        """The digest of all files; unknown files are read.

        Of several ranks with the same files, one reads. Raises OSError.
        """
        known = self.known(files)
        if known is not None:
            return known
        with _alone(self._index):
            self._known |= _read(self._index)
            return self._digest(files)

    def _digest(self, files: Sequence[Path]) -> str:
        digests, changed = [], False
        for file in files:
            name, stamp = str(file.absolute()), _stamp(file)
            entry = self._known.get(name)
            if entry is None or entry[:5] != stamp:
                entry = [*stamp, _sha256(file)]
                # Seen before and after: what changed while it was read is not remembered.
                if _stamp(file) == stamp and time.time_ns() - max(stamp[3:5]) > _SETTLED_NS:
                    self._known[name] = entry
                    changed = True
            digests.append(entry[5])
        if changed:
            self._save()
        return _together(files, digests)

    def _save(self) -> None:
        kept = dict(list(self._known.items())[-_MOST_KEPT:])
        self._index.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._index) as file:
            file.write(json.dumps(kept).encode())


def _alone(index: Path) -> BaseFileLock:
    """A lock for one process at a time, on every system; it ends with its process."""
    # Late: only a checkpoint that was not read before needs it.
    from filelock import FileLock

    index.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(index.with_suffix(".lock"))


def _stamp(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _sha256(file: Path) -> str:
    """SHA-256, not BLAKE2: processors have instructions for it, which make it twice as fast."""
    digest = hashlib.sha256()
    buffer = bytearray(_PIECE)
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def _together(files: Sequence[Path], digests: Sequence[str]) -> str:
    whole = [[file.name, digest] for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _read(index: Path) -> dict[str, list[Any]]:
    """The readable part of the index; the rest is computed again."""
    try:
        known = read_json(index)
    except CheckpointError:
        return {}
    return {name: entry for name, entry in known.items() if _is_entry(entry)}


def _is_entry(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 6 and isinstance(value[5], str)
