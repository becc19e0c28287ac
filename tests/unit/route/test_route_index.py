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
        self.tiers: dict[bytes, str] = {}

    def snapshot(self) -> tuple[int, int, list[tuple[bytes, str, list[bytes]]]]:
        # Parents come before children: a block is stored after the one before it.
        return self.epoch, self.seq, [(self.parents[name], self.tiers[name], [name]) for name in self.parents]

    def change(self) -> tuple[str, bytes, list[bytes], str]:
        """Do something, and tell what."""
        self.seq += 1
        draw, what = self._draw, self._draw.random()
        if what < 0.6 or not self.parents:
            names = list(chain(START, [(draw.randrange(3),) for _ in range(draw.randrange(1, 6))]))
            tier = draw.choices(TIERS, (8, 1, 1))[0]
            parent = START
            for name in names:
                self.parents.setdefault(name, parent)
                self.tiers[name] = tier
                parent = name
            return "stored", START, names, tier
        if what < 0.97:
            name = draw.choice(list(self.parents))
            tier = self.tiers[name]
            below = [name]
            for one in below:
                below += [child for child, parent in self.parents.items() if parent == one]
            for one in below:
                del self.parents[one], self.tiers[one]
            return "removed", b"", [name], tier
        self.parents.clear()
        self.tiers.clear()
        return "cleared", b"", [], "device"

    def held(self, names: list[bytes]) -> Held:
        tiers: list[str] = []
        for name in names:
            if name not in self.tiers:
                break
            tiers.append(self.tiers[name])
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
        assert index.blocks(name) == tree.tiers
        assert index.size(name) == len(tree.parents)
        names = list(chain(START, [(draw.randrange(3),) for _ in range(6)]))
        expected = {
            one: held
            for one, held in ((one, trees[one].held(names)) for one in trees)
            if held.blocks and index.known(one) and index.blocks(one) == trees[one].tiers
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


def test_a_block_moves_between_tiers() -> None:
    index = PrefixIndex()
    index.replace("a", 1, 0, [(START, "device", [b"x", b"y"])])
    index.store("a", b"x", [b"y"], "disk")
    assert index.held([b"x", b"y"]) == {"a": Held(1, 0, 1)}
    index.remove("a", [b"y"], "device")
    assert index.size("a") == 2, "it had left the device before"
    index.remove("a", [b"y"], "disk")
    assert index.held([b"x", b"y"]) == {"a": Held(1)}


def test_memory_of_a_forgotten_engine_is_free() -> None:
    index = PrefixIndex()
    index.replace("a", 1, 0, [(START, "device", [b"x", b"y"])])
    index.replace("b", 1, 0, [(START, "device", [b"x"])])
    index.forget("a")
    assert index.held([b"x"]) == {"b": Held(1)}
    index.forget("b")
    assert index._holders == {}
