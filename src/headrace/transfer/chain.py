"""Names of blocks by content: a chain of hashes over the tokens of a prefix.

The hash of a block covers the layout of its bytes, the adapter, the salt, and every token up to its end. Two processes
that compute the same prefix with the same model give its blocks the same names, and no others.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["HASH_BYTES", "chain", "first_hash", "next_hash"]

HASH_BYTES = 16
_NAME = b"headrace-kv"


def first_hash(layout_id: bytes, adapter: str = "", salt: str = "") -> bytes:
    """The hash before the first block: that of no tokens. `layout_id` names the model, the layout and the dtype of the
    blocks' bytes; equal ids mean interchangeable bytes. The hash has `HASH_BYTES` bytes (BLAKE2b)."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in (_NAME, layout_id, adapter.encode(), salt.encode()):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()


def next_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of the block of `tokens` behind the block (or the start) of hash `parent`."""
    return hashlib.blake2b(parent + _int32_le(tokens), digest_size=HASH_BYTES).digest()


def chain(first: bytes, blocks: Iterable[Sequence[int]]) -> Iterator[bytes]:
    """The hashes of consecutive blocks of tokens behind `first`."""
    for tokens in blocks:
        first = next_hash(first, tokens)
        yield first


def _int32_le(tokens: Sequence[int]) -> bytes:
    values = array("i", tokens)
    if sys.byteorder != "little":
        values.byteswap()
    return values.tobytes()
