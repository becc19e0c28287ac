"""The radix tree alone."""

from __future__ import annotations

from headrace.core.block_pool import BlockPool
from headrace.core.radix import BlockKey, Namespace, PrefixMatch, RadixNode, RadixTree

HERE = Namespace("", "")


def keys(text: str) -> list[BlockKey]:
    """Blocks of two tokens."""
    return [tuple(map(ord, text[i : i + 2])) for i in range(0, len(text), 2)]


class Forest:
    """A tree of strings."""

    def __init__(self, blocks: int = 40) -> None:
        self.pool = BlockPool(blocks, 2)
        self.tree = RadixTree(self.pool)

    def find(self, text: str) -> PrefixMatch:
        root = self.tree.find(HERE)
        return (
            PrefixMatch(RadixNode(None, [], [], 0), 0, 0)
            if root is None
            else self.tree.match_prefix(root, keys(text), 0, len(text) // 2)
        )

    def put(self, text: str) -> RadixNode:
        """Insert and stay locked."""
        root = self.tree.root(HERE)
        match = self.tree.match_prefix(root, keys(text), 0, len(text) // 2)
        node = self.tree.split(match)
        self.tree.lock(node)
        for key in keys(text)[match.depth :]:
            node = self.tree.insert(node, key, self.pool.allocate())
        return node

    def keep(self, *texts: str) -> None:
        for text in texts:
            self.tree.unlock(self.put(text))

    def runs(self) -> list[str]:
        return sorted("".join(map(chr, sum(node.keys, ()))) for node in self.tree if node.keys)


def test_a_run_is_one_node_until_sequences_part() -> None:
    forest = Forest()
    forest.keep("aabbccdd")
    assert forest.runs() == ["aabbccdd"]
    forest.keep("aabbxxyy")
    assert forest.runs() == ["aabb", "ccdd", "xxyy"]
    assert (forest.tree.size, forest.tree.evictable, len(forest.pool)) == (6, 6, 33)


def test_matches_end_at_full_blocks_anywhere_in_a_run() -> None:
    forest = Forest()
    forest.keep("aabbccdd", "aabbxxyy")
    for text, depth in (("aabbccdd", 4), ("aabbcc", 3), ("aabbcz", 2), ("aab", 1), ("zz", 0), ("aabbxxyyzz", 4)):
        assert forest.find(text).depth == depth


def test_nodes_merge_again_when_a_branch_is_removed() -> None:
    forest = Forest()
    forest.keep("aabbccdd")
    forest.keep("aabbxxyy", "aabbccdd")
    assert forest.tree.evict()
    assert forest.tree.evict()
    assert forest.runs() == ["aabbccdd"]


def test_nodes_merge_when_the_sequence_that_ended_between_them_does() -> None:
    forest = Forest()
    long = forest.put("aabbccdd")
    short = forest.put("aabb")
    assert forest.runs() == ["aabb", "ccdd"]
    assert (long.lock, short.lock) == (1, 2)
    forest.tree.unlock(short)
    assert forest.runs() == ["aabbccdd"]
    assert long.lock == 1
    forest.tree.unlock(long)
    assert forest.tree.evictable == 4


def test_a_sequence_keeps_its_place_through_split_and_merge() -> None:
    forest = Forest()
    first = forest.put("aabbcc")
    second = forest.put("aadd")
    forest.tree.unlock(second)
    while forest.tree.evict():
        pass
    assert forest.runs() == ["aabbcc"]
    assert forest.tree.insert(first, keys("ee")[0], forest.pool.allocate()) is first
    assert forest.find("aabbccee").depth == 4


def test_growth_does_not_extend_a_node_that_others_end_at() -> None:
    forest = Forest()
    one, other = forest.put("aabb"), forest.put("aabb")
    assert one is other
    assert forest.tree.insert(one, keys("cc")[0], forest.pool.allocate()) is not one
    assert forest.runs() == ["aabb", "cc"]


def test_locked_blocks_stay_and_the_oldest_leaf_goes_from_its_end() -> None:
    forest = Forest()
    forest.keep("aabb", "ccdd")
    held = forest.put("aa")
    assert forest.tree.evictable == 3
    assert forest.tree.evict()
    assert forest.runs() == ["aa", "ccdd"]
    assert forest.tree.evict()
    assert forest.tree.evict()
    assert not forest.tree.evict()
    assert forest.runs() == ["aa"]
    forest.tree.unlock(held)
    assert forest.tree.evict()
    assert not list(forest.tree), "an empty root goes, too"


def test_use_makes_young() -> None:
    forest = Forest()
    forest.keep("aa", "bb", "cc", "aa")
    gone = []
    for _ in range(3):
        before = set(forest.runs())
        forest.tree.evict()
        gone += before - set(forest.runs())
    assert gone == ["bb", "cc", "aa"]


def test_a_partly_filled_block_stands_until_a_fuller_one_comes() -> None:
    forest = Forest()
    node = forest.put("aa")
    assert forest.tree.insert_partial(node, (ord("b"),), forest.pool.allocate())
    assert not forest.tree.insert_partial(node, (ord("b"),), 39)
    assert forest.runs() == ["aa", "b"]
    free = len(forest.pool)
    forest.tree.insert(node, keys("bc")[0], forest.pool.allocate())
    assert len(forest.pool) == free, "its block came back"
    assert forest.runs() == ["aabc"], "and the rest is one run again"
    forest.tree.unlock(forest.put("aabc"))


def test_the_best_partly_matching_block_is_beside() -> None:
    pool = BlockPool(40, 4)
    tree = RadixTree(pool)
    root = tree.root(HERE)
    tree.lock(root)
    wanted = {}
    for key in ((1, 1, 1, 1), (1, 2, 2, 2), (1, 2, 3, 3), (1, 2, 3, 9), (2, 2, 2, 2)):
        wanted[key] = pool.allocate()
        tree.insert(root, key, wanted[key])
    found = tree.partial_matches(PrefixMatch(root, 0, 0), (1, 2, 3, 4))
    assert found[0][0] == 3
    assert found[0][1] in (wanted[1, 2, 3, 3], wanted[1, 2, 3, 9])
    assert tree.partial_matches(PrefixMatch(root, 0, 0), (1, 9))[0][0] == 1
    assert tree.partial_matches(PrefixMatch(root, 0, 0), (7,)) == []
    assert tree.partial_matches(PrefixMatch(root, 0, 0), ()) == []


def test_drop_takes_what_a_step_was_to_fill_and_all_below() -> None:
    forest = Forest()
    forest.keep("aabbcc", "aabbdd", "xx")
    match = forest.find("aabb")
    forest.pool.filled_by[match.node.blocks[1]] = 9
    forest.tree.drop(9)
    assert forest.runs() == ["aa", "xx"]
    assert len(forest.pool) + forest.tree.size == 39
    assert forest.tree.evictable == forest.tree.size


def test_reset_hides_what_is_in_use_and_frees_it_at_the_end() -> None:
    forest = Forest()
    forest.keep("aabb", "ccdd")
    held = forest.put("aabb")
    forest.tree.reset()
    assert forest.find("aabb").depth == 0
    assert (forest.tree.size, forest.tree.evictable) == (2, 0)
    held = forest.tree.insert(held, keys("ee")[0], forest.pool.allocate())
    forest.keep("aaxx")
    forest.tree.unlock(held)
    assert forest.runs() == ["aaxx"]
    assert len(forest.pool) == 39 - 2


def test_namespaces_are_typed() -> None:
    forest = Forest()
    forest.keep("aa")
    assert forest.tree.find(Namespace("a", "")) is None
    assert forest.tree.find(Namespace("", "a")) is None
    assert forest.tree.find(Namespace("", "")) is not None


def test_the_heap_of_leaves_does_not_grow_with_use() -> None:
    forest = Forest(8)
    for _ in range(3000):
        forest.keep("aabb")
    assert len(forest.tree._leaves) < 200
    assert forest.tree.evict()
