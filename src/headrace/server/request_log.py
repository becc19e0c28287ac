"""One line in the log for each request, at the level info. It never holds a prompt, an answer or a query."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

from starlette.types import Scope

from headrace.log_format import FIELDS
from headrace.server.page_files import DOCS_PATHS, PAGE_PATHS
from headrace.server.request_record import RequestRecord

__all__ = ["LineHeldBack", "is_noted", "log_request"]

_log = logging.getLogger("headrace.requests")
_LEFT_OUT = frozenset({"/health", "/metrics", "/v1/engine/state", *PAGE_PATHS, *DOCS_PATHS})
_LONGEST = 200


def is_noted(scope: Scope) -> bool:
    """False for what programs ask again and again, and for the pages' files."""
    return scope["path"] not in _LEFT_OUT


def log_request(scope: Scope, record: RequestRecord) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    # A path is the client's: it must not end the line, or write to a terminal.
    path = scope["path"].encode("unicode_escape").decode()[:_LONGEST]
    values = dict(_values(record))
    shown = " ".join(f"{name}={_shown(value)}" for name, value in values.items())
    status = record.status or "-"
    extra = {FIELDS: {"method": scope["method"], "path": path, "status": record.status, **values}}
    _log.info("%s %s %s %s", scope["method"], path, status, shown, extra=extra)


class LineHeldBack(logging.Filter):
    """Holds back the line of one request until `release`: one whose answer is printed to the terminal would have it
    behind the answer's last word. For two threads: one logs, the other releases."""

    def __init__(self) -> None:
        super().__init__()
        self.id: str | None = None
        """The request's; None until it is known: then nothing is held back."""
        self._held: list[logging.LogRecord] = []
        self._lock = threading.Lock()
        self._released = False
        _log.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            if self._released or self.id is None or getattr(record, FIELDS, {}).get("id") != self.id:
                return True
            self._held.append(record)
            return False

    def release(self) -> None:
        """Log what was held back, and hold nothing back any more."""
        with self._lock:
            self._released = True
        _log.removeFilter(self)
        for record in self._held:
            _log.handle(record)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _values(record: RequestRecord) -> Iterator[tuple[str, Any]]:
    """What is known, by its name."""
    if record.caller:
        yield "key", record.caller
    if record.id:
        yield "id", record.id
    if record.model:
        yield "model", record.model
    if record.prompt_tokens is not None:
        yield "prompt_tokens", record.prompt_tokens
        yield "cached_tokens", record.cached_tokens
        yield "output_tokens", record.completion_tokens
        yield "finish", record.finish
    if record.queue_seconds is not None:
        yield "queue", round(record.queue_seconds, 6)
    if record.first_token is not None:
        yield "ttft", round(record.first_token - record.began, 6)
    yield "total", round(record.ended - record.began, 6)
