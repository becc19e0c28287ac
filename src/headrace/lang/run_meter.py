"""Meters what a run computes itself, between its generations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace.errors import ProgramError

__all__ = ["RunMeter"]

_SLICE = 1 << 20
"""Characters after which the event loop runs other tasks, and with `_OPERATION` as the least cost also operations."""
_OPERATION = 1 << 14


class RunMeter:
    """Adds up the characters and entries that operations read. Gives the event loop a turn now and then: a plan may
    compute for long without a request, and must end if it is cancelled."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: characters and entries that a run may read; None: any number."""
        self._most = most
        self.total = 0
        self._slice = 0

    async def add(self, operands: Iterable[Any]) -> None:
        """Count an operation before it runs. Raises ProgramError if the run has read too much."""
        size = sum(map(_size, operands))
        self.total += size
        if self._most is not None and self.total > self._most:
            raise ProgramError(f"the run has read more than {self._most} characters and entries of values")
        self._slice += size + _OPERATION
        if self._slice >= _SLICE:
            self._slice = 0
            await asyncio.sleep(0)


def _size(value: Any) -> int:
    """Characters and entries, to a depth of two: no operation reads more than that of a value at once."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, dict)):
        entries = value.values() if isinstance(value, dict) else value
        return len(value) + sum(len(one) for one in entries if isinstance(one, (str, list, dict)))
    return 0
