"""Responses that clients asked to keep, in SQLite: for each client limited in number, size and time, whatever comes
first."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

from headrace.server.state_base import add_column, open_base

__all__ = ["KeptResponse", "ResponseStore"]

_MOST = 10_000
_MOST_BYTES = 1 << 30
_LIFETIME = 30 * 86400.0
"""Seconds."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, made REAL NOT NULL, size INTEGER NOT NULL, response BLOB NOT NULL, items BLOB NOT NULL,
    owner TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS responses_made ON responses (made);
"""


class KeptResponse(NamedTuple):
    response: bytes
    """JSON, as it was answered."""
    items: bytes
    """JSON: the list of the input's items."""


class ResponseStore:
    """Any thread; each call is one transaction."""

    def __init__(
        self, folder: Path, most: int = _MOST, most_bytes: int = _MOST_BYTES, lifetime: float = _LIFETIME
    ) -> None:
        """Raises ConfigError for a folder that cannot be written."""
        self._most, self._most_bytes, self._lifetime = most, most_bytes, lifetime
        self._lock = threading.Lock()
        self._base = open_base(folder, "responses.sqlite", _SCHEMA)
        add_column(self._base, "responses", "owner", "TEXT NOT NULL DEFAULT ''")

    def put(self, response_id: str, kept: KeptResponse, owner: str = "") -> None:
        """Keep a response, and drop the oldest ones of its owner beyond the limits. One that is larger than all may be
        together is not kept."""
        size = len(kept.response) + len(kept.items)
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", (response_id, time.time(), size, *kept, owner)
            )
            self._drop_old(owner)

    def _drop_old(self, owner: str) -> None:
        self._base.execute("DELETE FROM responses WHERE made < ?", (time.time() - self._lifetime,))
        while True:
            count, size = self._base.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM responses WHERE owner = ?", (owner,)
            ).fetchone()
            if count <= self._most and size <= self._most_bytes:
                return
            self._base.execute(
                "DELETE FROM responses WHERE id IN "
                "(SELECT id FROM responses WHERE owner = ? ORDER BY made LIMIT max(1, ?))",
                (owner, count - self._most),
            )

    def get(self, response_id: str, owner: str = "") -> KeptResponse | None:
        with self._lock:
            row = self._base.execute(
                "SELECT response, items FROM responses WHERE id = ? AND owner = ? AND made >= ?",
                (response_id, owner, time.time() - self._lifetime),
            ).fetchone()
        return None if row is None else KeptResponse(*row)

    def delete(self, response_id: str, owner: str = "") -> bool:
        """Whether it was there."""
        with self._lock:
            query = "DELETE FROM responses WHERE id = ? AND owner = ?"
            return self._base.execute(query, (response_id, owner)).rowcount > 0

    def close(self) -> None:
        with self._lock:
            self._base.close()
