"""Calls into the tokenizers library, whose faults come as bare Exceptions and whose panics come as less than that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import CheckpointError, HeadraceError

__all__ = ["guarded"]


@contextlib.contextmanager
def guarded(what: str, path: Path | None = None) -> Iterator[None]:
    """Turn whatever the library raises into a CheckpointError of one line: `what`, then the reason.

    A panic in the library is a BaseException; those by which Python itself ends a program pass.
    """
    try:
        yield
    except (HeadraceError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{what}: {reason}", None if path is None else str(path)) from error
