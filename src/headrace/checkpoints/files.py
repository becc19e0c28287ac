"""Reads files of an untrusted checkpoint: only regular files, of a limited size, with JSON of a limited depth."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel

__all__ = ["located", "optional_json", "present", "read_json", "read_text", "regular_size"]

_MOST_BYTES = 64 << 20
"""The size limit of a settings file. The index of the largest published checkpoint has 14 MB."""
_DEEPEST = 64
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def present(path: Path) -> bool:
    """Whether a file has this name, including a broken link: an unreadable file is an error, not a missing one."""
    return os.path.lexists(path)


def regular_size(path: Path) -> int:
    """The bytes of a regular file. Raises CheckpointError for others: opening a named pipe would wait for a writer."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        why = "a link to a file that does not exist" if present(path) else "the file is missing"
        raise CheckpointError(why, str(path)) from error
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", str(path)) from error
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "no regular file")
        raise CheckpointError(f"{kind}: expected a file", str(path))
    return found.st_size


def read_text(path: Path) -> str:
    """The text of a small UTF-8 file. Raises CheckpointError that names the file."""
    size = regular_size(path)
    if size > _MOST_BYTES:
        raise CheckpointError(f"has {size} bytes: at most {_MOST_BYTES} are read", str(path))
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", str(path)) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"not UTF-8: byte {error.start} is wrong", str(path)) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, nested at most 64 deep. Raises CheckpointError that names the file."""
    try:
        value = json.loads(read_text(path))
    except RecursionError as error:
        raise _too_deep(path) from error
    except ValueError as error:
        raise CheckpointError(f"not valid JSON: {error}", str(path)) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"holds a {type(value).__name__}: expected a JSON object", str(path))
    if not _shallow(value):
        raise _too_deep(path)
    return value


def optional_json(path: Path) -> dict[str, Any]:
    """`read_json`, or {} if there is no such file."""
    return read_json(path) if present(path) else {}


def _shallow(value: Mapping[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return True
    return False


def _too_deep(path: Path) -> CheckpointError:
    return CheckpointError(f"JSON is nested too deeply: at most {_DEEPEST} levels are read", str(path))


@contextlib.contextmanager
def located(path: Path) -> Iterator[None]:
    """Add the file's name to errors of functions that read settings, which don't have it."""
    try:
        yield
    except CheckpointError as error:
        raise error if error.path else CheckpointError(str(error), str(path), error.tensor) from error
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
