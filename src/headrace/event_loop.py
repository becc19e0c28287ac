"""The event loop of the server, the engine and the benchmarks: uvloop if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # There is no uvloop for Windows.
        return asyncio.run(main)
    return uvloop.run(main)
