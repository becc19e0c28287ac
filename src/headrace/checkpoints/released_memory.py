"""Returns memory to the system while a model is loaded: pages of mapped files, and free memory of the heap.

Without it, a model is in memory twice.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MappedFiles", "trim_heap"]

_MAPS = Path("/proc/self/maps")
_DONT_NEED = 4


class MappedFiles:
    """The maps of a checkpoint's files in this process, which stay valid: a released page is read from the file again
    at the next access. The maps are never written. Any thread may call the methods."""

    def __init__(self, checkpoint: Path) -> None:
        """Find the current maps; none on a system that does not list them."""
        found = list(_maps(checkpoint)) if sys.platform == "linux" and _MAPS.exists() else []
        self._ranges = found
        self._advise = ctypes.CDLL(None, use_errno=True).madvise if found else None
        if self._advise is not None:
            self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def give_back(self) -> None:
        """Release all pages that were read. The system keeps them in its file cache while it has room."""
        if self._advise is not None:
            for start, end in self._ranges:
                # A failure costs memory, nothing else.
                self._advise(start, end - start, _DONT_NEED)


def trim_heap() -> None:
    """Return freed heap memory to the system if the C library can (glibc keeps most of it, in one pool per thread)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _maps(checkpoint: Path) -> Iterator[tuple[int, int]]:
    """The address ranges of the maps."""
    files = [entry for entry in checkpoint.iterdir() if entry.is_file()] if checkpoint.is_dir() else [checkpoint]
    names = {str(file.resolve()) for file in files}
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] in names:
            start, _, end = fields[0].partition("-")
            yield int(start, 16), int(end, 16)
