"""Where a request goes: a pure function of what is known about the engines, in estimated milliseconds.

The cost of an engine is the time until the request's first token there, plus what the request takes from the others:

    wait for the tokens queued before it + computing the tokens that are not cached + fetching cached ones from a
    slower tier + the time by which its own tokens delay the sequences that decode there

The lowest cost wins; within 2% the engine that got a request the longest ago, so that equal engines take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.route.prefix_index import Held

__all__ = [
    "Candidate",
    "Placement",
    "Rates",
    "Splitting",
    "cached_tokens",
    "cost",
    "least_loaded",
    "place",
    "round_robin",
    "split",
]

Splitting = Literal["auto", "always", "never"]
"""Whether one engine computes a prompt and another answers: where it pays, for every long prompt, or never."""

_LEAST_SPLIT = 256
"""Tokens to compute from which another engine may compute them."""
_MARGIN = 0.9
_LOOKED_FOR = 1.05
"""What a cached token costs at most, compared with one that is not."""
_NEAR = 1.02
"""Costs within this factor count as equal."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast an engine is. The router measures `prefill`; the others are defaults until it knows better."""

    prefill: float = 0.4
    """Milliseconds to compute one token of a prompt."""
    host: float = 0.02
    """Milliseconds to bring one cached token from the host's memory."""
    disk: float = 0.1
    """The same from disk."""
    decode: float = 0.15
    """Milliseconds by which one more sequence makes a step longer."""
    transfer: float = 0.05
    """Milliseconds to bring one token's keys and values from another engine."""
    delay: float = 0.1
    """Share of its prefill time by which a prompt delays each sequence that decodes."""


class Candidate(NamedTuple):
    """An engine that could take the request."""

    name: str
    held: Held
    """Blocks of the request's prompt."""
    block_size: int
    queued: int
    """Prompt tokens of requests that have not produced a token yet."""
    running: int
    """Sequences that produce tokens."""
    slots: int
    """Sequences that can run at once."""
    rates: Rates = Rates()
    last_used: int = 0
    """A number that grows with each request; that of the last one it got."""


class Placement(NamedTuple):
    name: str
    cost: float
    """Estimated milliseconds."""
    cached: int
    """Tokens of the prompt that are expected to be cached there."""


def cost(engine: Candidate, tokens: int, answer: int) -> float:
    """Estimated milliseconds that a prompt of so many tokens costs on an engine. `answer`: its expected tokens."""
    rates, held, size = engine.rates, engine.held, engine.block_size
    new = max(1, tokens - held.blocks * size)
    compute = new * rates.prefill
    # What would take longer to bring than to compute is computed.
    most = _LOOKED_FOR * rates.prefill
    fetch = size * (held.host * min(rates.host, most) + held.disk * min(rates.disk, most))
    wait = engine.queued * rates.prefill
    over = engine.running - engine.slots + 1
    if over > 0:
        # It waits until so many sequences have ended: each takes the time of an answer, and they end in turn.
        wait += over * answer * rates.decode
    slower = answer * rates.decode
    return wait + compute + fetch + engine.running * (rates.delay * compute + slower)


def cached_tokens(engine: Candidate, tokens: int) -> int:
    """Tokens that need not be computed: the last one always is."""
    return min(engine.held.blocks * engine.block_size, max(0, tokens - 1))


def place(engines: Iterable[Candidate], tokens: int, answer: int = 128) -> Placement | None:
    """The engine for a prompt of so many tokens; None if there is none."""
    priced = [(cost(engine, tokens, answer), engine) for engine in engines]
    if not priced:
        return None
    limit = min(price for price, _ in priced) * _NEAR
    price, chosen = min(
        ((price, engine) for price, engine in priced if price <= limit), key=lambda pair: (pair[1].last_used, pair[0])
    )
    return Placement(chosen.name, price, cached_tokens(chosen, tokens))


def split(
    decode: Candidate, prefills: Iterable[Candidate], tokens: int, answer: int = 128, splitting: Splitting = "auto"
) -> Placement | None:
    """The engine that should compute the prompt for `decode`, which fetches its blocks meanwhile; None if `decode` does
    as well by itself. Short prompts never pay, and a split must win by a tenth, unless it is done always."""
    size = decode.block_size
    moved = tokens - decode.held.blocks * size
    found = place(prefills, tokens, 1)
    if found is None or moved < _LEAST_SPLIT or splitting == "never":
        return None
    arrived = decode._replace(held=Held(tokens // size))
    # Blocks are fetched while later ones are computed.
    together = max(found.cost, moved * decode.rates.transfer) + cost(arrived, tokens, answer)
    return found if splitting == "always" or together < _MARGIN * cost(decode, tokens, answer) else None


# For comparison: how routers without knowledge of the caches place requests.


def round_robin(engines: Iterable[Candidate], tokens: int, answer: int = 128) -> Placement | None:
    return _by(engines, tokens, answer, lambda engine: (engine.last_used,))


def least_loaded(engines: Iterable[Candidate], tokens: int, answer: int = 128) -> Placement | None:
    return _by(engines, tokens, answer, lambda engine: (engine.running + engine.queued / 256, engine.last_used))


Key = Callable[[Candidate], tuple[float, ...]]


def _by(engines: Iterable[Candidate], tokens: int, answer: int, key: Key) -> Placement | None:
    chosen = min(engines, key=key, default=None)
    return (
        None if chosen is None else Placement(chosen.name, cost(chosen, tokens, answer), cached_tokens(chosen, tokens))
    )
