"""The event loop that everything here runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # Windows has none.
        return asyncio.run(main)
    return uvloop.run(main)
