"""An order to an end whose blocks have another number of tokens or another split: what it must be asked for."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from headrace.errors import TransferError
from headrace.transfer.block_form import Converter, conversion, form_bytes, same_heads
from headrace.transfer.chain import chain, first_hash
from headrace.transfer.connectors.connector import Order, Prefix
from headrace.transfer.identity import Identity, TransferRefused

__all__ = ["ConvertedOrder", "converted"]


class ConvertedOrder(NamedTuple):
    """What to fetch in place of an order's blocks."""

    names: list[bytes]
    """The other end's blocks, in order."""
    converter: Converter
    """Takes their payloads one by one."""


def converted(order: Order, ours: Identity, theirs: Identity) -> ConvertedOrder:
    """For two ends that `check_identity` lets pass. Raises TransferError if the order does not say its tokens, or asks
    for blocks that they do not begin with."""
    prefix = order.prefix
    if prefix is None or ours.form is None or theirs.form is None:
        raise TransferRefused(
            f"it has other blocks ({theirs.block_size} tokens, tensor parallel {theirs.tensor_parallel_size}; here "
            f"{ours.block_size} and {ours.tensor_parallel_size}), and the order does not say which tokens they hold"
        )
    start = _place(order.hashes[0], ours, prefix) * ours.block_size if order.hashes else 0
    end = start + len(order.hashes) * ours.block_size
    size = theirs.block_size
    first, last = start // size, min(-(-end // size), prefix.given // size, len(prefix.tokens) // size)
    names = list(islice(_names(theirs, prefix), first, max(first, last)))
    count = max(0, min(end, last * size) - start) // ours.block_size
    if not same_heads(theirs.form, ours.form):
        raise TransferRefused("its blocks are described as those of other layers or KV heads than this engine's")
    described = form_bytes(theirs.form, size), form_bytes(ours.form, ours.block_size)
    if described != (theirs.block_bytes, ours.block_bytes):
        raise TransferError(
            f"its blocks have {theirs.block_bytes} bytes and ours {ours.block_bytes}, which are {described} as they "
            "are described"
        )
    made = conversion(theirs.form, size, ours.form, ours.block_size)
    return ConvertedOrder(names, made.begin(start, count))


def _names(identity: Identity, prefix: Prefix) -> list[bytes]:
    size, tokens = identity.block_size, prefix.tokens
    blocks = (tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size))
    return list(chain(first_hash(identity.layout_id, prefix.adapter, prefix.salt), blocks))


def _place(name: bytes, ours: Identity, prefix: Prefix) -> int:
    try:
        return _names(ours, prefix).index(name)
    except ValueError:
        raise TransferError("the order begins with a block that is not one of its tokens") from None
