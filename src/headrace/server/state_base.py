"""The folder of the server's state: its owner, and its SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.errors import ConfigError

__all__ = ["add_column", "open_base", "owned"]


@contextmanager
def owned(folder: str | None) -> Iterator[None]:
    """Hold a server's folder of state, which the system releases when the process ends, however it ends. None: there is
    none. Raises ConfigError if another server holds it, or if it cannot be written."""
    if folder is None:
        yield
        return
    lock = FileLock(Path(folder) / "lock")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"--state-dir: another server uses {folder}: give each one its own") from None
    except OSError as error:
        raise ConfigError(f"--state-dir: {folder} cannot be used: {error}") from None
    try:
        yield
    finally:
        lock.release()


def open_base(folder: Path, name: str, schema: str) -> sqlite3.Connection:
    """A connection for any thread, without transactions of its own. What is committed outlasts the process, however it
    ends. Raises ConfigError for a folder that cannot be written."""
    file = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        base = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        base.executescript(schema)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"--state-dir: {file} cannot be opened: {error}") from None
    return base


def add_column(base: sqlite3.Connection, table: str, column: str, definition: str) -> None:
    """Add a column to a table that an earlier version made without it."""
    if column not in (row[1] for row in base.execute(f"PRAGMA table_info({table})")):
        base.execute(f"ALTER TABLE {table} ADD COLUMN {column} {definition}")
