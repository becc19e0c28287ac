"""Guards calls into the tokenizers library, whose errors are bare Exceptions and whose panics are BaseExceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import CheckpointError, HeadraceError

__all__ = ["guarded"]


@contextlib.contextmanager
def guarded(what: str, path: Path | None = None) -> Iterator[None]:
    """Turn every error of the library into a CheckpointError of one line: `what`, then the reason.

    A panic in the library is a BaseException. The BaseExceptions by which Python itself ends a program are not changed.
    """
    try:
        yield
    except (HeadraceError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{what}: {reason}", None if path is None else str(path)) from error
