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
_COUNTED = 1 << 26
"""What is counted of one operation at most: lists may hold the same list often."""


class RunMeter:
    """Adds up the characters and entries that operations read. Gives the event loop a turn now and then: a plan may
    compute for long without a request, and must end if it is cancelled."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: characters and entries that a run may read; None: any number."""
        self._most = most
        self.total = 0
        self._slice = 0

    async def add(self, operands: Iterable[Any]) -> int:
        """Count an operation before it runs, and return its size. Raises ProgramError if the run has read too much."""
        size, waiting = 0, [one for one in operands if isinstance(one, (str, list, dict))]
        while waiting and size < _COUNTED:
            read = _read(waiting, _SLICE - self._slice)
            size += read
            await self._pass(read)
        await self._pass(0, _OPERATION)
        return size

    async def _pass(self, size: int, least: int = 0) -> None:
        self.total += size
        if self._most is not None and self.total > self._most:
            raise ProgramError(f"the run has read more than {self._most} characters and entries of values")
        self._slice += size + least
        if self._slice >= _SLICE:
            self._slice = 0
            await asyncio.sleep(0)


def _read(waiting: list[Any], enough: int) -> int:
    """Take values from the stack until they have `enough` characters and entries, and return how many they have. What
    lists and objects hold goes onto the stack."""
    size = 0
    while waiting and size < enough:
        one = waiting.pop()
        size += len(one)
        if not isinstance(one, str):
            waiting += [
                entry
                for entry in (one.values() if isinstance(one, dict) else one)
                if isinstance(entry, (str, list, dict))
            ]
    return size
