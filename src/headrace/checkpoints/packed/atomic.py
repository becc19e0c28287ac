"""Writes a file that other processes see completely or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file and rename it at the end; if the block raises, it is removed.

    The file is not synced: a reader must detect a file that a power failure left empty.
    """
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
