"""Anonymous private memory from the system, in huge pages if there are any."""

from __future__ import annotations

import mmap

from headrace.errors import OutOfMemory
from headrace.platforms.host import address_space, host_memory

__all__ = ["map_memory"]

_HUGE = 1 << 21
_NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on


def map_memory(size: int, what: str, reserve: bool = True) -> mmap.mmap:
    """Zeroed memory for `what`. Raises OutOfMemory.

    The mapping is private, because shared anonymous memory gets no huge pages: it belongs to the kernel's tmpfs.
    `reserve` False: the system need not have all of it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    linux = hasattr(mmap, "MADV_HUGEPAGE")
    if linux and not reserve:
        flags |= _NORESERVE
    try:
        mapped = mmap.mmap(-1, max(size, 1), flags=flags)
    except (OSError, OverflowError) as error:
        free, total = address_space() or host_memory()
        raise OutOfMemory(
            f"cpu: no {size} bytes for {what} ({error}): {free} of {total} bytes are left; raise the limit (ulimit -v, "
            "a container's memory, vm.overcommit_memory) or choose a smaller model"
        ) from error
    if linux and size >= _HUGE:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
