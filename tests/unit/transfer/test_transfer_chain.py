"""Names of blocks by content."""

from __future__ import annotations

import hashlib
import struct

import pytest

from headrace.transfer.chain import HASH_BYTES, chain, first_hash, next_hash

LAYOUT = bytes(range(16))


def test_the_hash_is_the_documented_one():
    first = hashlib.blake2b(digest_size=16)
    for part in (b"headrace-kv", LAYOUT, b"lora", "säl".encode()):
        first.update(struct.pack("<I", len(part)) + part)
    assert first_hash(LAYOUT, "lora", "säl") == first.digest()
    second = hashlib.blake2b(first.digest() + struct.pack("<3i", 5, 0, 49151), digest_size=16)
    assert next_hash(first.digest(), [5, 0, 49151]) == second.digest()
    assert len(second.digest()) == HASH_BYTES


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", ""), ("", "a")),
        (("ab", "c"), ("a", "bc")),
        (("", ""), ("", "x")),
    ],
)
def test_adapters_and_salts_part_the_names(one: tuple[str, str], other: tuple[str, str]):
    assert first_hash(LAYOUT, *one) != first_hash(LAYOUT, *other)


def test_layouts_part_the_names():
    assert first_hash(LAYOUT) != first_hash(bytes(16))


def test_a_chain_names_every_prefix_of_whole_blocks():
    first = first_hash(LAYOUT)
    blocks = [(1, 2), (3, 4), (1, 2)]
    names = list(chain(first, blocks))
    assert names[1] == next_hash(names[0], (3, 4))
    assert names[0] != names[2]
    assert list(chain(first, blocks[:2])) == names[:2]


def test_cuts_of_the_same_tokens_have_other_names():
    first = first_hash(LAYOUT)
    assert list(chain(first, [(1, 2), (3, 4)]))[-1] != next_hash(first, (1, 2, 3, 4))
