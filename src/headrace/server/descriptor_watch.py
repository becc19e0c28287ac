"""Logs once that the process runs out of file descriptors. Event loops either drop the refused connections silently
(uvloop) or report every attempt (asyncio)."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from typing import Any

__all__ = ["DescriptorWatch"]

_log = logging.getLogger(__name__)
_NEAR = 8
"""Descriptors left, at most, when this is logged. The kernel gives out the lowest free number, so a new connection's
number shows how many are in use."""


class DescriptorWatch:
    """Watches the file descriptors of one server. Thread: the event loop's."""

    def __init__(self) -> None:
        self._reported = False

    def opened(self, number: int) -> None:
        """Check the descriptor number of a new connection."""
        limit = _limit()
        if limit is None:
            return
        if number >= limit - _NEAR:
            self._report(limit)
        elif number < limit // 2:
            self._reported = False

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exception handler of the event loop."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self._report(_limit())
        else:
            loop.default_exception_handler(context)

    def _report(self, limit: int | None) -> None:
        if not self._reported:
            self._reported = True
            how_many = "" if limit is None else f" of {limit}"
            _log.error("no file descriptors are left%s: connections are refused; raise the limit (ulimit -n)", how_many)


def _limit() -> int | None:
    """Descriptors that this process may have; None if there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
