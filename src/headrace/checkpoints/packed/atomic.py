"""A file that others see whole or not at all."""

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
    """Written beside its name and renamed at the end; nothing is left of it where the block raises. Not synced: a file that a
    power cut leaves empty is found out by whoever reads it."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
