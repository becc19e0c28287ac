"""Work counted in lines of Python that run: unlike times, they are the same on every machine."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """(what `work` gives, the lines of Python that ran until then, in this thread and in those that began meanwhile)"""
    lines = itertools.count()
    """Counts of several threads at once."""

    def count(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            next(lines)
        return count

    ours, theirs = sys.gettrace(), threading.gettrace()
    threading.settrace(count)
    sys.settrace(count)
    try:
        found = work()
    finally:
        sys.settrace(ours)
        threading.settrace(theirs)  # type: ignore[arg-type]
    return found, next(lines)
