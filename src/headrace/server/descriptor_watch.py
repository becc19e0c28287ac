"""Says once that the process runs out of file descriptors: what the kernel then refuses, event loops drop in silence
(uvloop) or report at every attempt (asyncio)."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from typing import Any

__all__ = ["DescriptorWatch"]

_log = logging.getLogger(__name__)
_NEAR = 8
"""DescriptorWatch left, at most, when it is said: the lowest free number is always given out, so numbers tell how many are
in use."""


class DescriptorWatch:
    """One server's. Thread: the event loop's."""

    def __init__(self) -> None:
        self._reported = False

    def opened(self, number: int) -> None:
        """A connection has this number."""
        limit = _limit()
        if limit is None:
            return
        if number >= limit - _NEAR:
            self._report(limit)
        elif number < limit // 2:
            self._reported = False

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler."""
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
    """DescriptorWatch that this process may have; None where nobody says."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
