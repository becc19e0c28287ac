"""`GET /v1/engine/state`: what the engine does now, in numbers. It holds no text and no tokens of any request."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.client.api import ModelInfo
from headrace.deadlines import in_time
from headrace.engine.stats import EngineStats, EngineView, PrefixView, SequenceView
from headrace.errors import EngineDead
from headrace.server.context import Context

__all__ = ["EngineStateReply", "engine_state"]

_TIMEOUT = 3.0


class StateModel(Struct):
    id: str
    platform: str
    dtype: str
    max_model_len: int


class StateSequence(Struct):
    """One choice of a request."""

    id: str
    state: str
    """`waiting`, `prefill`, `decode`, or `open`: ended, and kept for the request that goes on with it."""
    seconds: float
    """Since its arrival."""
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_output_tokens: int
    blocks: int
    tree_blocks: int


class StateBlocks(Struct):
    """The KV cache. A cell stands for the first of `blocks_per_cell` blocks: 0 free, 1 cached only, 2 held by several
    sequences, 3 held by what is not listed, 4 + n held by entry n of `running` alone."""

    block_size: int
    total: int
    free: int
    cached: int
    held: int
    blocks_per_cell: int
    cells: list[int]


class StatePrefix(Struct):
    """A run of cached tokens without a branch in it."""

    parent: int
    """The place of the listed run that it continues; -1: none."""
    tokens: int
    own_tokens: int
    users: int
    branches: int
    adapter: str
    salted: bool


class StateWastes(Struct):
    """Shares from 0 to 1, over the last seconds."""

    kv_utilization: float
    slot_occupancy: float
    device_busy: float


class StateTotals(Struct):
    """Since the server's start, or the engine's: compare two readings."""

    steps: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    preemptions: int
    restarts: int
    device_busy_seconds: float


class EngineStateReply(Struct):
    object: str
    now: float
    """Monotonic seconds of the engine's machine."""
    model: StateModel
    slots: int
    """Sequences that can run at once."""
    running_count: int
    waiting_count: int
    running: list[StateSequence]
    """At most 256, as of those that wait."""
    waiting: list[StateSequence]
    blocks: StateBlocks
    prefixes: list[StatePrefix]
    prefixes_visited: int
    prefixes_left: bool
    """The tree has more runs than were visited."""
    wastes: StateWastes
    totals: StateTotals


async def engine_state(context: Context, request: Request) -> Response:
    try:
        view = await in_time(_TIMEOUT, context.client.view())
    except asyncio.TimeoutError:
        raise EngineDead(f"the engine did not answer within {_TIMEOUT:.0f} seconds") from None
    reply = _reply(context, context.client.info, view)
    return Response(msgspec.json.encode(reply), media_type="application/json", headers={"cache-control": "no-store"})


def _reply(context: Context, info: ModelInfo, view: EngineView) -> EngineStateReply:
    stats, scheduler = view.stats, view.scheduler
    return EngineStateReply(
        object="engine.state",
        now=view.now,
        model=StateModel(context.model, info.platform, info.dtype, info.max_model_len),
        slots=scheduler.slots,
        running_count=stats.scheduler.running,
        waiting_count=stats.scheduler.waiting,
        running=[_sequence(one, view.now) for one in scheduler.running],
        waiting=[_sequence(one, view.now) for one in scheduler.waiting],
        blocks=_blocks(view),
        prefixes=[_prefix(one) for one in scheduler.prefixes],
        prefixes_visited=scheduler.nodes,
        prefixes_left=scheduler.nodes_left,
        wastes=StateWastes(stats.kv_utilization, stats.slot_occupancy, stats.device_busy),
        totals=_totals(context, view),
    )


def _sequence(one: SequenceView, now: float) -> StateSequence:
    return StateSequence(
        one.id,
        one.state,
        max(0.0, now - one.arrival),
        one.prompt_tokens,
        one.cached_tokens,
        one.computed_tokens,
        one.output_tokens,
        one.max_output_tokens,
        one.blocks,
        one.tree_blocks,
    )


def _blocks(view: EngineView) -> StateBlocks:
    core = view.stats.scheduler
    total = core.blocks_free + core.blocks_cached + core.blocks_held
    counts = (core.blocks_free, core.blocks_cached, core.blocks_held)
    return StateBlocks(view.stats.block_size, total, *counts, view.scheduler.blocks_per_cell, view.scheduler.cells)


def _prefix(one: PrefixView) -> StatePrefix:
    return StatePrefix(one.parent, one.tokens, one.own_tokens, one.users, one.branches, one.adapter, one.salted)


def _totals(context: Context, view: EngineView) -> StateTotals:
    stats: EngineStats = view.stats
    core = stats.scheduler
    # Those of requests that have not ended are not in the server's count yet.
    open_tokens = sum(one.output_tokens for one in (*view.scheduler.running, *view.scheduler.waiting))
    return StateTotals(
        steps=stats.steps,
        prompt_tokens=core.prompt_tokens,
        cached_tokens=core.cached_tokens,
        generation_tokens=context.metrics.generation_tokens + open_tokens,
        preemptions=core.preemptions,
        restarts=stats.restarts,
        device_busy_seconds=stats.totals.busy_seconds,
    )
