"""Which engine holds which blocks: one map over all engines, fed by their events, searched by chains of hashes.

What an engine's device holds is a tree, since there is no block without the blocks before it. So the number of blocks
that it holds of a chain is found by bisection. Other tiers are sets: their blocks count as far as they follow, without
a gap, what the device holds. What was missed is never guessed: after a gap in the numbers, or from another process of
the engine, nothing counts until its contents have come again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["DEVICE", "TIERS", "Held", "PrefixIndex"]

TIERS = ("device", "host", "disk")
DEVICE = TIERS[0]
_BIT = {"host": 1, "disk": 2}
Name = bytes
"""The chain hash of a block."""
_NOBODY: frozenset[str] = frozenset()


class Held(NamedTuple):
    """Blocks of a chain that an engine holds, from the chain's start, by tier."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def blocks(self) -> int:
        return self.device + self.host + self.disk


@dataclass(slots=True)
class _Part:
    """What one engine holds."""

    epoch: int | None = None
    """None: nothing is known."""
    seq: int = 0
    parents: dict[Name, Name] = field(default_factory=dict)
    children: dict[Name, set[Name]] = field(default_factory=dict)
    beside: dict[Name, int] = field(default_factory=dict)
    """The other tiers that hold a block, as bits."""


class PrefixIndex:
    """Thread: the event loop's. Engines are named by any text."""

    def __init__(self) -> None:
        self._holders: dict[Name, set[str]] = {}
        """Block → the engines on whose devices it is."""
        self._beside: dict[Name, set[str]] = {}
        """Block → the engines that have it in another tier."""
        self._parts: dict[str, _Part] = {}

    # What engines report

    def replace(self, engine: str, epoch: int, seq: int, runs: Iterable[tuple[Name, str, Sequence[Name]]]) -> None:
        """Replace what is known of an engine. A run is (hash before, tier, hashes)."""
        self.forget(engine)
        part = self._parts[engine] = _Part(epoch, seq)
        for parent, tier, names in runs:
            self._store(engine, part, parent, names, tier)

    def follow(self, engine: str, epoch: int, seq: int) -> bool:
        """True if the changes of this number are the next ones of the engine. Otherwise nothing is known of it any
        more: its contents must be asked for."""
        part = self._parts.get(engine)
        if part is None or part.epoch != epoch or seq != part.seq + 1:
            self.forget(engine)
            return False
        part.seq = seq
        return True

    def store(self, engine: str, parent: Name, names: Sequence[Name], tier: str = DEVICE) -> None:
        """Blocks of an engine: on the device they follow each other, and `parent`."""
        self._store(engine, self._parts[engine], parent, names, tier)

    def remove(self, engine: str, names: Iterable[Name], tier: str = DEVICE) -> None:
        """Blocks that an engine no longer holds in this tier; on the device, all blocks behind them too."""
        part = self._parts[engine]
        for name in names:
            if tier != DEVICE:
                self._take_out(engine, part, name, _BIT[tier])
            elif name in part.parents:
                self._drop(engine, part, name)

    def clear(self, engine: str) -> None:
        """All blocks of an engine's device are gone; its next changes are expected as before."""
        part = self._parts[engine]
        for name in part.parents:
            _leave(self._holders, name, engine)
        part.parents.clear()
        part.children.clear()

    def forget(self, engine: str) -> None:
        if engine in self._parts:
            self.clear(engine)
            for name in self._parts.pop(engine).beside:
                _leave(self._beside, name, engine)

    # Questions

    def known(self, engine: str) -> bool:
        return engine in self._parts

    def size(self, engine: str) -> int:
        """Blocks that an engine holds, in whatever tier."""
        part = self._parts.get(engine)
        if part is None:
            return 0
        return len(part.parents.keys() | part.beside.keys()) if part.beside else len(part.parents)

    def blocks(self, engine: str) -> dict[Name, set[str]]:
        """The tiers of every block of an engine."""
        part = self._parts.get(engine) or _Part()
        found = {name: {DEVICE} for name in part.parents}
        for name, bits in part.beside.items():
            found.setdefault(name, set()).update(tier for tier, bit in _BIT.items() if bits & bit)
        return found

    def held(self, chain: Sequence[Name]) -> dict[str, Held]:
        """The engines that hold the first block of a chain or more, with how much of it. Each block counts for its
        fastest tier."""
        if not chain:
            return {}
        engines = self._holders.get(chain[0], _NOBODY) | self._beside.get(chain[0], _NOBODY)
        return {engine: self._depth(engine, chain) for engine in engines}

    def _depth(self, engine: str, chain: Sequence[Name]) -> Held:
        holders, last = self._holders, len(chain) - 1
        if engine in holders.get(chain[last], _NOBODY):
            return Held(last + 1)
        count = bisect_left(range(last), True, key=lambda at: engine not in holders.get(chain[at], _NOBODY))
        beside, host, disk = self._parts[engine].beside, 0, 0
        if beside:
            for name in chain[count:]:
                bits = beside.get(name, 0)
                if not bits:
                    break
                host, disk = (host + 1, disk) if bits & _BIT["host"] else (host, disk + 1)
        return Held(count, host, disk)

    # Parts

    def _store(self, engine: str, part: _Part, parent: Name, names: Sequence[Name], tier: str) -> None:
        if tier != DEVICE:
            for name in names:
                part.beside[name] = part.beside.get(name, 0) | _BIT[tier]
                self._beside.setdefault(name, set()).add(engine)
            return
        for name in names:
            self._holders.setdefault(name, set()).add(engine)
            if name not in part.parents:
                part.parents[name] = parent
                part.children.setdefault(parent, set()).add(name)
            parent = name

    def _take_out(self, engine: str, part: _Part, name: Name, bit: int) -> None:
        bits = part.beside.get(name, 0) & ~bit
        if bits:
            part.beside[name] = bits
        elif part.beside.pop(name, 0):
            _leave(self._beside, name, engine)

    def _drop(self, engine: str, part: _Part, name: Name) -> None:
        siblings = part.children[part.parents[name]]
        siblings.discard(name)
        if not siblings:
            del part.children[part.parents[name]]
        below = [name]
        for one in below:
            below.extend(part.children.pop(one, ()))
            del part.parents[one]
            _leave(self._holders, one, engine)


def _leave(holders: dict[Name, set[str]], name: Name, engine: str) -> None:
    holders[name].discard(engine)
    if not holders[name]:
        del holders[name]
