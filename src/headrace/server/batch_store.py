"""Files, batches and their lines: small things in SQLite, files beside it under their ids.

A line is answered once: its answer is one row, written in one transaction. What has no row when the process ends, even
by kill -9, is computed again after the next start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.server.batch_schemas import BatchObject, FileObject
from headrace.server.http_errors import HttpError
from headrace.server.request_ids import new_request_id
from headrace.server.state_base import add_column, open_base

__all__ = ["OPEN_STATES", "Answer", "BatchStore", "Line"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, made REAL NOT NULL, size INTEGER NOT NULL, file BLOB NOT NULL, owner TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, made REAL NOT NULL, status TEXT NOT NULL, batch BLOB NOT NULL, owner TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL, n INTEGER NOT NULL, custom_id TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    status INTEGER, answer BLOB, PRIMARY KEY (batch, n)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_lines ON lines (batch, n) WHERE status IS NULL;
"""
OPEN_STATES = ("validating", "in_progress", "finalizing", "cancelling")
_OPEN = ",".join("?" * len(OPEN_STATES))
_SUM = "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE owner = ?"
_MOST_BYTES = 10 * 2**30
_MOST_FILES = 10_000


class Line(NamedTuple):
    n: int
    custom_id: str
    start: int
    """Offset in the input's file, in bytes."""
    size: int


class Answer(NamedTuple):
    n: int
    custom_id: str
    status: int
    """Of HTTP; 0 for a line that was not computed, whose answer is the code of the reason."""
    answer: bytes


class BatchStore:
    """Any thread; each call is one transaction."""

    def __init__(self, folder: Path, most_bytes: int = _MOST_BYTES, most_files: int = _MOST_FILES) -> None:
        """Raises ConfigError for a folder that cannot be written."""
        self._lock = threading.RLock()
        self._base = open_base(folder, "batches.sqlite", _SCHEMA)
        for table in ("files", "batches"):
            add_column(self._base, table, "owner", "TEXT NOT NULL DEFAULT ''")
        self._folder = folder / "files"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._most_bytes, self._most_files = most_bytes, most_files

    def close(self) -> None:
        with self._lock:
            self._base.close()

    # Files

    def new_file(self) -> tuple[str, Path]:
        """The id of a file to come, and its place. It is there once it is added."""
        file_id = new_request_id("file")
        return file_id, self._folder / file_id

    def path(self, file_id: str) -> Path:
        """Of a file that is there."""
        return self._folder / file_id

    def add_file(self, file: FileObject, owner: str = "") -> None:
        """Raises HttpError 413 beyond the limits of all files of an owner together."""
        with self._lock, self._base:
            self._drop_expired()
            count, size = self._base.execute(_SUM, (owner,)).fetchone()
            if count >= self._most_files or size + file.bytes > self._most_bytes:
                message = (
                    f"{count} files with {size} bytes are kept, and at most {self._most_files} with {self._most_bytes} "
                    "may be: delete some"
                )
                raise HttpError(413, message, param="file", code="quota_exceeded")
            self._insert(file, owner)

    def _insert(self, file: FileObject, owner: str) -> None:
        row = (file.id, time.time(), file.bytes, msgspec.json.encode(file), owner)
        self._base.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", row)

    def _drop_expired(self) -> None:
        now, used = time.time(), self.in_use()
        for file in self._files("", ()):
            if file.expires_at is not None and file.expires_at < now and file.id not in used:
                self._remove(file.id)

    def _remove(self, file_id: str) -> bool:
        found = self._base.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0
        if found:
            self.path(file_id).unlink(missing_ok=True)
        return found

    def _files(self, where: str, values: Sequence[str]) -> list[FileObject]:
        rows = self._base.execute(f"SELECT file FROM files {where} ORDER BY made, id", values).fetchall()
        return [msgspec.json.decode(row[0], type=FileObject) for row in rows]

    def files(self, owner: str = "") -> list[FileObject]:
        """Of one owner, oldest first."""
        with self._lock, self._base:
            self._drop_expired()
            return self._files("WHERE owner = ?", (owner,))

    def file(self, file_id: str, owner: str = "") -> FileObject | None:
        return next((file for file in self.files(owner) if file.id == file_id), None)

    def delete_file(self, file_id: str, owner: str = "") -> bool:
        """Whether it was there."""
        with self._lock, self._base:
            return bool(self._files("WHERE id = ? AND owner = ?", (file_id, owner))) and self._remove(file_id)

    def in_use(self) -> set[str]:
        """The ids of files that a batch still reads."""
        with self._lock:
            rows = self._base.execute(f"SELECT batch FROM batches WHERE status IN ({_OPEN})", OPEN_STATES).fetchall()
        return {msgspec.json.decode(row[0], type=BatchObject).input_file_id for row in rows}

    def sweep(self) -> None:
        """Delete what a process that was killed left half-written. For the start, while nothing is written."""
        with self._lock:
            known = {row[0] for row in self._base.execute("SELECT id FROM files")}
        for file in self._folder.iterdir():
            if file.name not in known and not file.is_dir():
                file.unlink(missing_ok=True)

    # Batches

    def add(self, batch: BatchObject, owner: str = "") -> None:
        row = (batch.id, time.time(), batch.status, msgspec.json.encode(batch), owner)
        with self._lock:
            self._base.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", row)

    def owner(self, batch_id: str) -> str | None:
        """None: there is no such batch."""
        with self._lock:
            row = self._base.execute("SELECT owner FROM batches WHERE id = ?", (batch_id,)).fetchone()
            return None if row is None else str(row[0])

    def get(self, batch_id: str) -> BatchObject | None:
        with self._lock:
            row = self._base.execute("SELECT batch FROM batches WHERE id = ?", (batch_id,)).fetchone()
            return None if row is None else self._counted(row[0])

    def status(self, batch_id: str) -> str | None:
        with self._lock:
            row = self._base.execute("SELECT status FROM batches WHERE id = ?", (batch_id,)).fetchone()
            return None if row is None else str(row[0])

    def batches(self, owner: str = "") -> list[BatchObject]:
        """Of one owner, newest first."""
        with self._lock:
            query = "SELECT batch FROM batches WHERE owner = ? ORDER BY made DESC, id"
            rows = self._base.execute(query, (owner,)).fetchall()
            return [self._counted(row[0]) for row in rows]

    def next_open(self) -> BatchObject | None:
        """The oldest batch that has not ended."""
        query = f"SELECT batch FROM batches WHERE status IN ({_OPEN}) ORDER BY made LIMIT 1"
        with self._lock:
            row = self._base.execute(query, OPEN_STATES).fetchone()
            return None if row is None else self._counted(row[0])

    def _counted(self, encoded: bytes) -> BatchObject:
        batch = msgspec.json.decode(encoded, type=BatchObject)
        counts = batch.request_counts
        query = (
            "SELECT count(*), sum(status BETWEEN 1 AND 399), sum(status >= 400 OR status = 0) FROM lines "
            "WHERE batch = ?"
        )
        total, completed, failed = self._base.execute(query, (batch.id,)).fetchone()
        if total:
            counts.total, counts.completed, counts.failed = total, completed or 0, failed or 0
        return batch

    def move(self, batch_id: str, states: Sequence[str], to: str, **fields: Any) -> BatchObject | None:
        """Set the state and more fields of a batch that is in one of `states`; None if it is in another."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            return self._move(batch_id, states, to, fields)

    def _move(self, batch_id: str, states: Sequence[str], to: str, fields: dict[str, Any]) -> BatchObject | None:
        batch = self.get(batch_id)
        if batch is None or batch.status not in states:
            return None
        batch = msgspec.structs.replace(batch, status=to, **fields)
        row = (to, msgspec.json.encode(batch), batch_id)
        self._base.execute("UPDATE batches SET status = ?, batch = ? WHERE id = ?", row)
        return batch

    # Lines

    def begin(self, batch_id: str, lines: Sequence[Line]) -> None:
        """Enter the lines of a valid batch, and begin to work on it, unless it has been cancelled."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            if self._move(batch_id, ("validating",), "in_progress", {"in_progress_at": int(time.time())}) is None:
                return
            self._base.executemany(
                "INSERT INTO lines VALUES (?, ?, ?, ?, ?, NULL, NULL)", [(batch_id, *line) for line in lines]
            )

    def open_lines(self, batch_id: str, after: int, most: int) -> list[Line]:
        """The next lines without an answer."""
        query = (
            "SELECT n, custom_id, start, size FROM lines WHERE batch = ? AND n > ? AND status IS NULL "
            "ORDER BY n LIMIT ?"
        )
        with self._lock:
            return [Line(*row) for row in self._base.execute(query, (batch_id, after, most))]

    def answer(self, batch_id: str, n: int, status: int, answer: bytes) -> None:
        """The first answer of a line stays."""
        query = "UPDATE lines SET status = ?, answer = ? WHERE batch = ? AND n = ? AND status IS NULL"
        with self._lock:
            self._base.execute(query, (status, answer, batch_id, n))

    def close_lines(self, batch_id: str, code: str) -> None:
        """Answer every open line with the reason why it is not computed."""
        with self._lock:
            query = "UPDATE lines SET status = 0, answer = ? WHERE batch = ? AND status IS NULL"
            self._base.execute(query, (code.encode(), batch_id))

    def answers(self, batch_id: str, page: int = 200) -> Iterator[Answer]:
        """All answers by line; read in pages."""
        at = -1
        query = (
            "SELECT n, custom_id, status, answer FROM lines WHERE batch = ? AND n > ? AND status IS NOT NULL "
            "ORDER BY n LIMIT ?"
        )
        while True:
            with self._lock:
                rows = [Answer(*row) for row in self._base.execute(query, (batch_id, at, page))]
            yield from rows
            if len(rows) < page:
                return
            at = rows[-1].n

    def end(self, batch_id: str, state: str, files: Sequence[FileObject], **fields: Any) -> None:
        """End a batch: its state, its files and the end of its lines are one transaction."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            counted = self.get(batch_id)
            assert counted is not None
            fields["request_counts"] = counted.request_counts
            if self._move(batch_id, OPEN_STATES, state, fields) is None:
                return
            owner = self.owner(batch_id)
            assert owner is not None
            for file in files:
                self._insert(file, owner)
            self._base.execute("DELETE FROM lines WHERE batch = ?", (batch_id,))
