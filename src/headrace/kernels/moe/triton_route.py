"""Routing on the device, and the sort of the chosen pairs by expert into blocks of rows. Requires triton.

The host reads nothing: there are as many blocks as any choice could need, and those without a pair have the owner -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.moe.routing import Routing
from headrace.kernels.tritonlib.device import jit, jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["Blocks", "blocks_kernel", "choose", "pairs_kernel", "route_kernel", "sort"]

Tensor = torch.Tensor
_LOWEST = tl.constexpr(-3e38)
"""The lowest score of an expert that can be chosen; -inf marks the others."""
_CHUNK = 1024


@jit
def _first_largest(values: tensor, place: tensor, END: tl.constexpr) -> tensor:
    """The place of the largest value, ties by the lower place."""
    return tl.min(tl.where(values == tl.max(values, 0), place, END), 0)


@jit
def _shut_groups(
    choice: tensor, expert: tensor, experts: tensor, GROUPS: tl.constexpr, TOP: tl.constexpr, BEST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tensor:  # fmt: skip
    """`choice` with -inf for every expert outside the TOP best groups."""
    group = expert // (experts // GROUPS)
    worth = tl.full([BLOCK], float("-inf"), tl.float32)
    for index in range(GROUPS):
        inside = (group == index) & (expert < experts)
        left, total = tl.where(inside, choice, float("-inf")), 0.0
        for _ in range(BEST):
            best = _first_largest(left, expert, BLOCK)
            total += tl.max(left, 0)
            left = tl.where(expert == best, float("-inf"), left)
        worth = tl.where(inside, total, worth)
    shut = choice
    kept = tl.full([BLOCK], float("-inf"), tl.float32)
    for _ in range(TOP):
        best = _first_largest(worth, group, BLOCK)
        kept = tl.where(group == best, shut, kept)
        worth = tl.where(group == best, float("-inf"), worth)
    return kept


@jit
def route_kernel(
    router: tensor, bias: tensor, chosen: tensor, shares: tensor, experts: int, scale: float, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr, TOP: tl.constexpr, BEST: tl.constexpr, K: tl.constexpr,
    KPAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per token: router [T, experts] to chosen int32 and shares float32 [T, K]."""
    # Grid (tokens). `router` is [T, experts], `bias` [experts] or None, `chosen` and `shares` are [T, K]. A program
    # holds all experts of its token in BLOCK lanes: it reads them once and works in registers. The K choices are K
    # passes of "the largest, ties by the lower id": they are few and exact, and their order is that in which the shares
    # are added later. A sort would not be stable over chips. `bias` changes only the choice, not the share. With
    # groups, all groups but the best are excluded (-inf) first. A NaN counts as the lowest score, so it never displaces
    # a number.
    token, expert = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = expert < experts
    x = tl.load(router + token * experts + expert, inside, float("-inf")).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-x))
    else:
        score = tl.exp(x - tl.max(x, 0))
        score = score / tl.sum(score, 0)
    choice = score
    if bias is not None:
        choice += tl.load(bias + expert, inside, 0.0).to(tl.float32)
    choice = tl.where(choice >= _LOWEST, choice, _LOWEST)  # NaN is chosen last
    choice = tl.where(inside, choice, float("-inf"))
    if GROUPS > 1:
        choice = _shut_groups(choice, expert, experts, GROUPS, TOP, BEST, BLOCK)
    rank = tl.arange(0, KPAD)
    ids, parts = tl.zeros([KPAD], tl.int32), tl.zeros([KPAD], tl.float32)
    for place in range(K):
        best = _first_largest(choice, expert, BLOCK)
        ids = tl.where(rank == place, best, ids)
        parts = tl.where(rank == place, tl.sum(tl.where(expert == best, score, 0.0), 0), parts)
        choice = tl.where(expert == best, float("-inf"), choice)
    if RENORMALIZE:
        parts = parts / tl.maximum(tl.sum(parts, 0), 1e-20)
    tl.store(chosen + token * K + rank, ids, rank < K)
    tl.store(shares + token * K + rank, parts * scale, rank < K)


@jit_varying("pairs")
def pairs_kernel(chosen: tensor, counts: tensor, pairs: int, BLOCK: tl.constexpr) -> None:
    """One program per expert: counts the pairs that chose it."""
    expert, total = tl.program_id(0), tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += (tl.load(chosen + at, at < pairs, -1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@jit_varying("pairs", "blocks")
def blocks_kernel(
    chosen: tensor, counts: tensor, order: tensor, owner: tensor, pairs: int, experts: int, blocks: int,
    ROWS: tl.constexpr, EPAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per expert: writes its pairs in order to complete blocks of `order`, and -1 to the rest of the
    last."""
    # Grid (experts). `chosen` is [pairs], `counts` [experts] comes from pairs_kernel, `order` is [blocks, ROWS],
    # `owner` [blocks]. Each expert owns complete blocks, after those of the experts before it: a program adds up all
    # counts itself, so experts need not wait for one another. It then walks all pairs in chunks of BLOCK and writes its
    # own pairs one after the other (with a running count, not an atomic one, so that the order is the same in every
    # run), fills its last block with -1 and writes its number as the owner of its blocks. The last expert marks the
    # unused blocks: their number depends on the choice, which the host does not read.
    expert, every = tl.program_id(0), tl.arange(0, EPAD)
    count = tl.load(counts + every, every < experts, 0)
    taken = (count + ROWS - 1) // ROWS
    first = tl.sum(tl.where(every < expert, taken, 0), 0)
    own, mine = tl.sum(tl.where(every == expert, count, 0), 0), tl.sum(tl.where(every == expert, taken, 0), 0)
    before = first * ROWS
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        hit = (tl.load(chosen + at, at < pairs, -1) == expert).to(tl.int32)
        tl.store(order + before + tl.cumsum(hit, 0) - hit, at, hit != 0)
        before += tl.sum(hit, 0)
    rest = own + tl.arange(0, ROWS)
    tl.store(order + first * ROWS + rest, tl.full([ROWS], -1, tl.int32), rest < mine * ROWS)
    for start in range(0, mine, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(owner + first + at, tl.zeros([BLOCK], tl.int32) + expert, at < mine)
    if expert == experts - 1:
        for start in range(first + mine, blocks, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(owner + at, tl.full([BLOCK], -1, tl.int32), at < blocks)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs (token * k + rank), sorted by expert."""

    order: Tensor
    """int32 [blocks, rows]; -1: no pair."""
    owner: Tensor
    """int32 [blocks]: the expert, or -1 for a block without a pair."""


def choose(router: Tensor, bias: Tensor | None, routing: Routing, config: LaunchConfig) -> tuple[Tensor, Tensor]:
    """Choose experts: (int32 [T, k] experts, float32 [T, k] shares); see `Routing`."""
    tokens, experts = router.shape
    chosen = router.new_empty(tokens, routing.top_k, dtype=torch.int32)
    shares = router.new_empty(tokens, routing.top_k, dtype=torch.float32)
    args: dict[str, Any] = {
        "router": router.contiguous(),
        "bias": None if bias is None else bias.contiguous(),
        "chosen": chosen,
        "shares": shares,
        "experts": experts,
        "scale": float(routing.scale),
        "SIGMOID": routing.score == "sigmoid",
        "RENORMALIZE": routing.renormalize,
        "GROUPS": routing.groups,
        "TOP": routing.top_groups,
        "BEST": min(routing.group_best, experts // routing.groups),
        "K": routing.top_k,
        "KPAD": next_power(routing.top_k),
        "BLOCK": next_power(experts),
    }
    config.launch(route_kernel, (tokens,), args, 1, 1)
    return chosen, shares


def sort(chosen: Tensor, experts: int, rows: int, config: LaunchConfig) -> Blocks:
    """Sort the pairs into blocks of `rows`: as many blocks as any choice could need."""
    pairs = chosen.numel()
    blocks = min(pairs, -(-pairs // rows) + min(experts, pairs))
    counts, owner = chosen.new_empty(experts), chosen.new_empty(blocks)
    order = chosen.new_empty(blocks, rows)
    shared = {"chosen": chosen, "counts": counts, "pairs": pairs, "BLOCK": min(_CHUNK, next_power(pairs))}
    grid = (experts,) if pairs else (0,)
    config.launch(pairs_kernel, grid, shared, 4, 1)
    args = {
        "order": order,
        "owner": owner,
        "experts": experts,
        "blocks": blocks,
        "ROWS": rows,
        "EPAD": next_power(experts),
    }
    config.launch(blocks_kernel, grid, {**shared, **args}, 4, 1)
    return Blocks(order, owner)
