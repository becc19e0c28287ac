"""The index of prefixes: equal to what the engines hold, whatever is lost on the way."""

from __future__ import annotations

import random

import pytest

from headrace.route.prefix_index import TIERS, Held, PrefixIndex
from headrace.transfer.chain import chain, first_hash

START = first_hash(b"layout")


class Tree:
    """What one engine really holds, and the messages that it sends about it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.restart()

    def restart(self) -> None:
        self.epoch, self.seq = self._draw.getrandbits(60), 0
        self.parents: dict[bytes, bytes] = {}
        """Of blocks on the device."""
        self.beside: dict[str, set[bytes]] = {"host": set(), "disk": set()}

    def snapshot(self) -> tuple[int, int, list[tuple[bytes, str, list[bytes]]]]:
        # Parents come before children: a block is stored after the one before it.
        runs = [(parent, "device", [name]) for name, parent in self.parents.items()]
        return self.epoch, self.seq, runs + [(b"", tier, sorted(names)) for tier, names in self.beside.items()]

    def change(self) -> tuple[str, bytes, list[bytes], str]:
        """Do something, and tell what."""
        self.seq += 1
        draw, what = self._draw, self._draw.random()
        tier = draw.choices(TIERS, (6, 2, 2))[0]
        if what < 0.6 or not self.parents:
            return "stored", START, self._store(tier), tier
        if what < 0.97:
            held = sorted(self.parents if tier == "device" else self.beside[tier]) or [b"none"]
            name = draw.choice(held)
            self._remove(name, tier)
            return "removed", b"", [name], tier
        self.parents.clear()
        return "cleared", b"", [], "device"

    def _store(self, tier: str) -> list[bytes]:
        draw = self._draw
        names = list(chain(START, [(draw.randrange(3),) for _ in range(draw.randrange(1, 6))]))
        if tier != "device":
            # Of a tier's blocks any may be missing.
            names = draw.sample(names, draw.randrange(1, len(names) + 1))
            self.beside[tier].update(names)
            return names
        parent = START
        for name in names:
            self.parents.setdefault(name, parent)
            parent = name
        return names

    def _remove(self, name: bytes, tier: str) -> None:
        if tier != "device":
            self.beside[tier].discard(name)
        elif name in self.parents:
            below = [name]
            for one in below:
                below += [child for child, parent in self.parents.items() if parent == one]
            for one in below:
                del self.parents[one]

    def blocks(self) -> dict[bytes, set[str]]:
        found = {name: {"device"} for name in self.parents}
        for tier, names in self.beside.items():
            for name in names:
                found.setdefault(name, set()).add(tier)
        return found

    def held(self, names: list[bytes]) -> Held:
        """On the device as far as that goes, then in the other tiers as far as they go."""
        tiers: list[str] = []
        for name in names:
            on_device = name in self.parents and "host" not in tiers and "disk" not in tiers
            tier = "device" if on_device else next((one for one in self.beside if name in self.beside[one]), None)
            if tier is None:
                break
            tiers.append(tier)
        return Held(*(tiers.count(tier) for tier in TIERS))


def apply(index: PrefixIndex, engine: str, message: tuple[str, bytes, list[bytes], str]) -> None:
    kind, parent, names, tier = message
    if kind == "stored":
        index.store(engine, parent, names, tier)
    elif kind == "removed":
        index.remove(engine, names, tier)
    else:
        index.clear(engine)


@pytest.mark.parametrize("seed", range(30))
def test_the_index_is_the_true_tree_after_gaps_and_restarts(seed: int) -> None:
    draw = random.Random(seed)
    index, trees = PrefixIndex(), {name: Tree(draw) for name in ("a", "b", "c")}
    for name, tree in trees.items():
        index.replace(name, *tree.snapshot())
    for _ in range(400):
        name = draw.choice(list(trees))
        tree = trees[name]
        if draw.random() < 0.02:
            tree.restart()
        message = tree.change()
        if draw.random() < 0.05:
            continue  # Lost on the way.
        if index.follow(name, tree.epoch, tree.seq):
            apply(index, name, message)
        else:
            assert not index.known(name)
            assert index.size(name) == 0
            index.replace(name, *tree.snapshot())
        assert index.blocks(name) == tree.blocks()
        assert index.size(name) == len(tree.blocks())
        names = list(chain(START, [(draw.randrange(3),) for _ in range(6)]))
        expected = {
            one: held
            for one, held in ((one, trees[one].held(names)) for one in trees)
            if held.blocks and index.known(one) and index.blocks(one) == trees[one].blocks()
        }
        found = index.held(names)
        assert {one: found[one] for one in expected} == expected


def test_nothing_counts_before_the_contents_come() -> None:
    index = PrefixIndex()
    assert not index.follow("a", 7, 1)
    index.replace("a", 7, 3, [(START, "device", [b"x", b"y"])])
    assert index.held([b"x", b"y", b"z"]) == {"a": Held(2)}
    assert not index.follow("a", 7, 5), "4 is missing"
    assert index.held([b"x"]) == {}


def test_another_epoch_is_another_process() -> None:
    index = PrefixIndex()
    index.replace("a", 7, 3, [(START, "device", [b"x"])])
    assert not index.follow("a", 8, 4)
    assert index.size("a") == 0


def test_a_block_is_in_several_tiers() -> None:
    index = PrefixIndex()
    index.replace("a", 1, 0, [(START, "device", [b"x", b"y"]), (b"", "disk", [b"y", b"z"])])
    assert index.held([b"x", b"y", b"z"]) == {"a": Held(2, 0, 1)}
    index.store("a", b"", [b"z"], "host")
    assert index.held([b"x", b"y", b"z"]) == {"a": Held(2, 1, 0)}, "of two tiers the faster one counts"
    index.remove("a", [b"x"])
    assert index.held([b"x", b"y", b"z"]) == {}, "nothing counts behind a gap"
    index.store("a", b"", [b"x"], "disk")
    assert index.held([b"x", b"y", b"z"]) == {"a": Held(0, 1, 2)}
    index.remove("a", [b"z", b"z", b"never"], "host")
    index.clear("a")
    assert index.held([b"x", b"y", b"z"]) == {"a": Held(0, 0, 3)}, "what is cleared is the device"
    assert index.size("a") == 3


def test_memory_of_a_forgotten_engine_is_free() -> None:
    index = PrefixIndex()
    index.replace("a", 1, 0, [(START, "device", [b"x", b"y"])])
    index.replace("b", 1, 0, [(START, "device", [b"x"]), (b"", "host", [b"y"])])
    index.forget("a")
    assert index.held([b"x"]) == {"b": Held(1)}
    index.forget("b")
    assert index._holders == index._beside == {}
