"""Opens SQLite files of the server's state."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["open_base"]


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
