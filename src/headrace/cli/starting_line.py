"""A line on the terminal from the first moment on, while a command's modules are imported. It goes away."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

__all__ = ["starting_line"]

_ERASE = "\r\x1b[K"


@contextlib.contextmanager
def starting_line(what: str) -> Iterator[None]:
    """Shows `what` on standard error, if that is a terminal, and takes it away before anything else is written."""
    out = sys.stderr
    if out is None or not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    out.write(what)
    out.flush()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # The terminal is gone.
            out.write(_ERASE)
            out.flush()
