"""Which engine holds which blocks: one map over all engines, fed by their events, searched by chains of hashes.

An engine's part is a tree, since it holds no block without the blocks before it. So the number of blocks that it holds
of a chain is found by bisection. What was missed is never guessed: after a gap in the numbers, or from another process
of the engine, nothing counts until its contents have come again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["DEVICE", "TIERS", "Held", "PrefixIndex"]

TIERS = ("device", "host", "disk")
DEVICE = 0
Name = bytes
"""The chain hash of a block."""


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
    elsewhere: int = 0
    """Blocks in other tiers than the device's."""


class PrefixIndex:
    """Thread: the event loop's. Engines are named by any text."""

    def __init__(self) -> None:
        self._holders: dict[Name, dict[str, int]] = {}
        """Block → (engine → tier)."""
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

    def store(self, engine: str, parent: Name, names: Sequence[Name], tier: str = "device") -> None:
        """Blocks of an engine that follow each other. Those that it held already are in this tier from now on."""
        self._store(engine, self._parts[engine], parent, names, tier)

    def remove(self, engine: str, names: Iterable[Name], tier: str = "device") -> None:
        """Blocks that an engine no longer holds in this tier, and all blocks behind them."""
        part, level = self._parts[engine], TIERS.index(tier)
        for name in names:
            if self._holders.get(name, {}).get(engine) == level:
                self._drop(engine, part, name)

    def clear(self, engine: str) -> None:
        """All blocks of an engine are gone; its next changes are expected as before."""
        part = self._parts[engine]
        for name in part.parents:
            self._unhold(engine, name)
        part.parents.clear()
        part.children.clear()
        part.elsewhere = 0

    def forget(self, engine: str) -> None:
        if engine in self._parts:
            self.clear(engine)
            del self._parts[engine]

    # Questions

    def known(self, engine: str) -> bool:
        return engine in self._parts

    def size(self, engine: str) -> int:
        """Blocks that an engine holds."""
        part = self._parts.get(engine)
        return 0 if part is None else len(part.parents)

    def blocks(self, engine: str) -> Mapping[Name, str]:
        """The tier of every block of an engine."""
        part = self._parts.get(engine)
        return {} if part is None else {name: TIERS[self._holders[name][engine]] for name in part.parents}

    def held(self, chain: Sequence[Name]) -> dict[str, Held]:
        """The engines that hold the first block of a chain or more, with how much of it."""
        if not chain:
            return {}
        return {engine: self._depth(engine, chain) for engine in self._holders.get(chain[0], ())}

    def _depth(self, engine: str, chain: Sequence[Name]) -> Held:
        holders = self._holders
        last = len(chain) - 1
        if engine in holders.get(chain[last], ()):
            count = last + 1
        else:
            count = bisect_left(range(last), True, key=lambda at: engine not in holders.get(chain[at], ()))
        if not self._parts[engine].elsewhere:
            return Held(count)
        tiers = [holders[name][engine] for name in chain[:count]]
        return Held(tiers.count(0), tiers.count(1), tiers.count(2))

    # Parts

    def _store(self, engine: str, part: _Part, parent: Name, names: Sequence[Name], tier: str) -> None:
        level = TIERS.index(tier)
        for name in names:
            holders = self._holders.setdefault(name, {})
            part.elsewhere += (level != DEVICE) - (holders.get(engine, DEVICE) != DEVICE)
            holders[engine] = level
            if name not in part.parents:
                part.parents[name] = parent
                part.children.setdefault(parent, set()).add(name)
            parent = name

    def _drop(self, engine: str, part: _Part, name: Name) -> None:
        siblings = part.children[part.parents[name]]
        siblings.discard(name)
        if not siblings:
            del part.children[part.parents[name]]
        below = [name]
        for one in below:
            below.extend(part.children.pop(one, ()))
            del part.parents[one]
            part.elsewhere -= self._unhold(engine, one) != DEVICE

    def _unhold(self, engine: str, name: Name) -> int:
        holders = self._holders[name]
        level = holders.pop(engine)
        if not holders:
            del self._holders[name]
        return level
