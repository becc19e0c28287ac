"""Places packed weights on the memory nodes of the threads that read them, on a machine with several nodes.

The thread that first writes a page decides its node, but the threads that pack weights or read a file run on any node.
So after a step has been recorded, a thread on the right node writes each part of its weights again. This needs no
special permission, whereas moving pages between nodes is often forbidden in containers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.kernels.linear.cpu_pack import PackedPart, PackedWeight

__all__ = ["BLOCK", "Placement", "by_node", "nodes"]

_EXPERTS = ("moe", "own_experts")
"""Kernels that read some of the parts of their weights, as the tokens choose."""
BLOCK = 2 << 20
"""Bytes that are moved at a time: a huge page, which is always on one node."""
_NODES = Path("/sys/devices/system/node")
_WRITERS = 4
"""Threads per node that move blocks."""

Blocks = Sequence[tuple[int, int]]
"""(address, bytes)"""


def nodes(root: Path = _NODES) -> dict[int, int]:
    """CPU → memory node; empty if the system reports none."""
    found: dict[int, int] = {}
    for path in root.glob("node[0-9]*/cpulist"):
        node = int(path.parent.name.removeprefix("node"))
        try:
            text = path.read_text()
        except OSError:
            continue
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
            found.update(dict.fromkeys(range(int(first), int(last or first) + 1), node))
    return found


def by_node(cpus: Sequence[int], root: Path = _NODES) -> list[int]:
    """CPUs sorted by node: neighbours in a team read neighbouring parts of a weight, and ranks take slices."""
    node_of = nodes(root)
    return sorted(cpus, key=lambda cpu: node_of.get(cpu, 0))


class Placement:
    """Places the weights of a team whose thread i is pinned to `cpus[i]`. It does nothing if no thread is pinned or the
    machine has one node. Used from one thread, while no kernel of the team runs."""

    def __init__(
        self, cpus: Sequence[int], root: Path = _NODES, move: Callable[[Blocks, Sequence[int]], None] | None = None
    ) -> None:
        """`move(blocks, cpus)` lets threads on these CPUs write the blocks again."""
        node_of = nodes(root)
        several = len(set(node_of.values())) > 1 and all(cpu in node_of for cpu in cpus)
        self._nodes = [node_of[cpu] for cpu in cpus] if several else []
        self._cpus: dict[int, list[int]] = {}
        for cpu, node in zip(cpus, self._nodes, strict=False):
            self._cpus.setdefault(node, []).append(cpu)
        self._move = move or _move
        self._placed: weakref.WeakSet[PackedWeight] = weakref.WeakSet()

    def place(self, products: Iterable[tuple[str, PackedWeight]]) -> int:
        """Place the weights of a step, each one once. `products`: (kernel, weight). Returns the number of bytes
        moved."""
        owners: dict[tuple[int, int], int] = {}
        for kernel, weight in products if self._nodes else ():
            # An embedding reads few rows. A table that is also the head is placed for the head.
            if kernel != "embedding" and weight not in self._placed:
                self._placed.add(weight)
                halves = 2 if kernel == "gated_linear" else 1
                owners.update(self._spread(weight) if kernel in _EXPERTS else self._by_runs(weight, halves))
        blocks: dict[int, list[tuple[int, int]]] = {node: [] for node in self._cpus}
        for block, node in owners.items():
            blocks[node].append(block)
        for node, mine in blocks.items():
            if mine:
                self._move(mine, self._cpus[node])
        return sum(size for _, size in owners)

    def _by_runs(self, weight: PackedWeight, halves: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Blocks with their nodes: every thread reads one range of the panels (`hr_share`), or the same one of gate and
        up."""
        total, before, threads = sum(len(part.panels) for part in weight.parts) // halves, 0, len(self._nodes)
        for part in weight.parts:
            start, each = part.panels.data_ptr(), part.panels.shape[1]
            for address, size in _blocks(part):
                middle = min(max(address + size // 2 - start, 0), part.panels.numel() - 1)
                panel = (before + middle // each) % total
                # The thread t of which total t // threads <= panel < total (t + 1) // threads.
                yield (address, size), self._nodes[((panel + 1) * threads - 1) // total]
            before += len(part.panels)

    def _spread(self, weight: PackedWeight) -> Iterator[tuple[tuple[int, int], int]]:
        """Blocks spread evenly over the nodes: which threads read an expert depends on the tokens."""
        every = sorted(self._cpus)
        for part in weight.parts:
            for address, size in _blocks(part):
                yield (address, size), every[address // BLOCK % len(every)]


def _blocks(part: PackedPart) -> Iterator[tuple[int, int]]:
    """The huge pages that the panels overlap, limited to the storage of the panels."""
    storage = part.panels.untyped_storage()
    page = mmap.PAGESIZE
    low, high = -(-storage.data_ptr() // page) * page, (storage.data_ptr() + storage.nbytes()) // page * page
    begin = part.panels.data_ptr()
    for block in range(begin // BLOCK * BLOCK, begin + part.panels.numel(), BLOCK):
        first, last = max(block, low), min(block + BLOCK, high)
        if first < last:
            yield first, last - first


def _move(blocks: Blocks, cpus: Sequence[int]) -> None:
    with ThreadPoolExecutor(_WRITERS, initializer=os.sched_setaffinity, initargs=(0, cpus)) as pool:
        for part in [pool.submit(_rewrite, blocks[i::_WRITERS]) for i in range(_WRITERS)]:
            part.result()


def _rewrite(blocks: Blocks) -> None:
    """Rewrite blocks in the calling thread: copy one away, return its pages to the system, copy it back to new pages. A
    block that the system does not take back (it may be locked) stays where it is."""
    give_back = ctypes.CDLL(None).madvise
    room = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    aside = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for address, size in blocks:
        ctypes.memmove(aside, address, size)
        if give_back(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED) == 0:
            ctypes.memmove(address, aside, size)
