"""Triton form of `ngram`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ngram.reference import LONGEST, SHORTEST
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import jit, jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["draft_kernel", "known_length", "match_kernel", "ngram"]

_SPLIT, _BLOCK = 4096, 1024
"""Tokens of a history that one program looks at, and at once."""


@jit
def known_length(sizes: tensor, slots: tensor, lengths: tensor, history: tensor, width: tensor, seq: tensor) -> tensor:
    """(the device places the rows of these sequences, the numbers of their known tokens, int64 first elements of their
    histories). `seq` must be an index of `slots`."""
    length = tl.load(lengths + seq)
    own = (seq < tl.load(sizes + 1)) & (length >= -1)
    text = tl.load(slots + seq).to(tl.int64) * width
    return own, tl.where(length < 0, tl.load(history + text + width - 1, own, 1), length), text


@jit_varying("width", "splits")
def match_kernel(
    sizes: tensor, query_start: tensor, slots: tensor, lengths: tensor, history: tensor, best: tensor, width: int,
    splits: int, LONGEST: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The longest earlier match of a sequence's last tokens that ends in a part of its history, the latest of several:
    its length and its last place, int64 best [seqs, splits], length * 2^32 + place."""
    # Grid (seqs, splits). A program walks over SPLIT tokens, BLOCK places at once, from the latest back. A place drops
    # out at the first token that differs, and the step back over tokens ends when no place is left: for most blocks
    # after one or two. A match of LONGEST tokens ends the walk, because an earlier one is no longer. The grid follows
    # from the history's width alone, so that it can be captured; programs past the known tokens have nothing to do.
    seq, split = tl.program_id(0), tl.program_id(1)
    own, known, text = known_length(sizes, slots, lengths, history, width, seq)
    drafted = own & (tl.load(query_start + seq + 1) - tl.load(query_start + seq) > 1)
    last = tl.maximum(tl.minimum(known, width - 1), 1) - 1
    first = split * SPLIT
    stop = tl.where(drafted, tl.minimum(first + SPLIT, last), 0)
    place = tl.zeros([], tl.int32)
    longest = place
    while (stop > first) & (longest < LONGEST):
        at = stop - BLOCK + tl.arange(0, BLOCK)
        matches = at >= first
        length = tl.zeros([BLOCK], tl.int32)
        back = tl.zeros([], tl.int32)
        left = back + 1
        while (left > 0) & (back < LONGEST):
            matches = matches & (at >= back)
            wanted = tl.load(history + text + tl.maximum(last - back, 0))
            matches = matches & (tl.load(history + text + at - back, matches, -1) == wanted)
            length += matches.to(tl.int32)
            left = tl.max(matches.to(tl.int32), 0)
            back += 1
        most = tl.max(length, 0)
        place = tl.where(most > longest, tl.max(tl.where(length == most, at, 0), 0), place)
        longest = tl.maximum(longest, most)
        stop -= BLOCK
    tl.store(best + seq.to(tl.int64) * splits + split, (longest.to(tl.int64) << 32) + place)


@jit_varying("width", "splits")
def draft_kernel(
    sizes: tensor, slots: tensor, lengths: tensor, history: tensor, best: tensor, drafts: tensor, width: int,
    splits: int, most: tl.constexpr, SHORTEST: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence: int32 drafts [seqs, most], what followed the best match of all parts."""
    seq = tl.program_id(0)
    _, known, text = known_length(sizes, slots, lengths, history, width, seq)
    part = tl.arange(0, SPLITS)
    found = tl.max(tl.load(best + seq.to(tl.int64) * splits + part, part < splits, 0), 0)
    last = tl.maximum(tl.minimum(known, width - 1), 1) - 1
    place = (found & 0xFFFFFFFF).to(tl.int32)
    draft = tl.arange(0, MOST)
    stop = tl.where((found >> 32) >= SHORTEST, most, 0)
    token = place + 1 + draft % tl.maximum(last - place, 1)
    token = tl.load(history + text + tl.minimum(token, width - 2), draft < stop, -1)  # -1 is NO_TOKEN
    tl.store(drafts + seq.to(tl.int64) * most + draft, token, draft < most)


def ngram(
    batch: Batch, lengths: torch.Tensor, history: torch.Tensor, most: int, *, config: LaunchConfig
) -> torch.Tensor:
    """See `ops.OptionalOps.ngram`; `batch.sizes` must be in memory that the kernels can read."""
    seqs, width = len(lengths), history.shape[1]
    splits = -(-width // _SPLIT)
    best = torch.empty((seqs, splits), dtype=torch.int64, device=history.device)
    drafts = torch.empty((seqs, most), dtype=torch.int32, device=history.device)
    shared = {
        "sizes": batch.sizes,
        "slots": batch.slots,
        "lengths": lengths,
        "history": history,
        "best": best,
        "width": width,
        "splits": splits,
    }
    match = {"query_start": batch.query_start, "LONGEST": LONGEST, "SPLIT": _SPLIT, "BLOCK": _BLOCK}
    config.launch(match_kernel, (seqs, splits), {**shared, **match}, 128 // config.lanes, 1)
    draft = {"drafts": drafts, "most": most, "SHORTEST": SHORTEST}
    draft |= {"SPLITS": next_power(splits), "MOST": next_power(most)}
    config.launch(draft_kernel, (seqs,), {**shared, **draft}, 1, 1)
    return drafts
