"""The router's policy over many simulated engines: discrete events, no clock, the same numbers for the same seed.

An engine computes prompts one after another, produces tokens for its running sequences in steps that get longer with
their number, and keeps the blocks of what it computed until it needs the room. The index is the router's own. Costs are
those of `Rates`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from headrace.route.policy import Candidate, Placement, Rates, least_loaded, place, round_robin
from headrace.route.prefix_index import Held, PrefixIndex
from headrace.route.traces import Conversation, Conversations, Growing, SimRequest, draw_conversations

__all__ = ["POLICIES", "Outcome", "SimSettings", "SimulatedFleet", "simulate"]

Policy = Callable[[Iterable[Candidate], int, int], Placement | None]
POLICIES: dict[str, Policy] = {"round robin": round_robin, "least loaded": least_loaded, "headrace": place}
_NEAREST = 8
"""Engines without the prefix that are priced: those with the least load."""
_MOST_HOLDERS = 32
_NOTHING = Held()


@dataclass(frozen=True, slots=True)
class SimSettings:
    engines: int = 1000
    slots: int = 32
    """Sequences that run at once on an engine."""
    cache_tokens: int = 60_000
    """Of an engine."""
    step: float = 12.0
    """Milliseconds of a step with one sequence."""
    slowdown: float = 0.02
    """Share by which each sequence that decodes makes a prompt slower."""
    rates: Rates = field(default_factory=Rates)


@dataclass(slots=True)
class Outcome:
    """What a policy came to."""

    policy: str
    requests: int = 0
    ttft: list[float] = field(default_factory=list)
    """Milliseconds, in order of the ends of prompts."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    """Of simulated time, to the last token."""
    busiest: float = 0.0
    """Computing time of the busiest engine, as a multiple of the mean."""

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class _Job:
    request: SimRequest
    done: Callable[[float], None]
    """Called with the time of its last token."""
    new: int = 0
    names: Sequence[bytes] = ()


class _Engine:
    """One simulated engine."""

    def __init__(self, name: str, sim: SimulatedFleet) -> None:
        self.name, self._sim = name, sim
        self.queued = self.running = self.last_used = 0
        self.busy = 0.0
        self._waiting: deque[_Job] = deque()
        self._computing = False
        self._room = sim.settings.cache_tokens // sim.block_size
        self._cached: OrderedDict[bytes, None] = OrderedDict()
        """The least recently used first; a block comes before the blocks it follows."""

    def take(self, job: _Job, now: float) -> int:
        """Queue a request. Returns the cached tokens of its prompt."""
        cached = 0
        for name in job.request.chain:
            if name not in self._cached:
                break
            cached += 1
        tokens = min(cached * self._sim.block_size, job.request.tokens - 1)
        job.new = job.request.tokens - tokens
        self.queued += job.new
        self._touch(job.request.chain)
        self._waiting.append(job)
        self._next(now)
        return tokens

    def _next(self, now: float) -> None:
        if self._computing or not self._waiting or self.running >= self._sim.settings.slots:
            return
        self._computing = True
        job = self._waiting.popleft()
        rates = self._sim.settings.rates
        # Steps are shared with the sequences that decode.
        took = job.new * rates.prefill * (1 + self.running * self._sim.settings.slowdown)
        self.busy += took
        self._sim.at(now + took, lambda then: self._computed(job, then))

    def _computed(self, job: _Job, now: float) -> None:
        self._computing = False
        self.queued -= job.new
        self.running += 1
        self._sim.computed(self, job, now)
        step = self._sim.settings.step + self.running * self._sim.settings.rates.decode
        self.busy += job.request.answer * self._sim.settings.rates.decode
        self._sim.at(now + job.request.answer * step, lambda then: self._ended(job, then))
        self._next(now)

    def _ended(self, job: _Job, now: float) -> None:
        self.running -= 1
        self._sim.changed(self)
        job.done(now)
        self._next(now)

    def _touch(self, chain: Sequence[bytes]) -> None:
        """Store the blocks of a prompt, as the newest; what has no room is evicted, the ends of prefixes first."""
        cached, index = self._cached, self._sim.index
        kept = chain[: self._room]
        new = [name for name in kept if name not in cached]
        for name in reversed(kept):
            cached[name] = None
            cached.move_to_end(name)
        if new:
            first = len(kept) - len(new)
            index.store(self.name, kept[first - 1] if first else b"", new)
        evicted = []
        while len(cached) > self._room:
            evicted.append(cached.popitem(last=False)[0])
        if evicted:
            index.remove(self.name, evicted)


class SimulatedFleet:
    """One run of one policy."""

    def __init__(self, policy: str, settings: SimSettings, block_size: int) -> None:
        self.settings, self.block_size = settings, block_size
        self.outcome = Outcome(policy)
        self.index = PrefixIndex()
        self._policy = POLICIES[policy]
        self._by_prefix = self._policy is place
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._placed = count(1)
        self._turn = count()
        self._engines = {str(at): _Engine(str(at), self) for at in range(settings.engines)}
        self._order = [(0.0, 0, name) for name in self._engines]
        """Heap of (load, last use, engine); entries that are no longer true are dropped when they come up."""
        for name in self._engines:
            self.index.replace(name, 0, 0, ())

    def at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), what))

    def run(self) -> Outcome:
        now = 0.0
        while self._events:
            now, _, what = heapq.heappop(self._events)
            what(now)
        self.outcome.seconds = now / 1000
        busy = [engine.busy for engine in self._engines.values()]
        self.outcome.busiest = max(busy) / max(1e-9, sum(busy) / len(busy))
        return self.outcome

    def arrive(self, request: SimRequest, now: float, done: Callable[[float], None]) -> None:
        placement = self._policy(self._candidates(request), request.tokens, request.answer)
        assert placement is not None, "there is at least one engine"
        engine = self._engines[placement.name]
        engine.last_used = next(self._placed)
        cached = engine.take(_Job(request, done), now)
        self.changed(engine)
        out = self.outcome
        out.requests += 1
        out.prompt_tokens += request.tokens
        out.answer_tokens += request.answer
        out.cached_tokens += cached
        out.expected_tokens += placement.cached

    def computed(self, engine: _Engine, job: _Job, now: float) -> None:
        self.outcome.ttft.append(now - job.request.arrival)
        self.changed(engine)

    def changed(self, engine: _Engine) -> None:
        heapq.heappush(self._order, (_load(engine), engine.last_used, engine.name))

    def _candidates(self, request: SimRequest) -> list[Candidate]:
        if self._policy is round_robin:
            return [self._candidate(str(next(self._turn) % len(self._engines)), _NOTHING)]
        held = self.index.held(request.chain) if self._by_prefix else {}
        if len(held) > _MOST_HOLDERS:
            held = dict(heapq.nlargest(_MOST_HOLDERS, held.items(), key=lambda pair: (pair[1], pair[0])))
        names = dict.fromkeys([*held, *self._nearest()])
        return [self._candidate(name, held.get(name, _NOTHING)) for name in names]

    def _nearest(self) -> list[str]:
        found: list[tuple[float, int, str]] = []
        while self._order and len(found) < _NEAREST:
            entry = heapq.heappop(self._order)
            engine = self._engines[entry[2]]
            if entry[:2] == (_load(engine), engine.last_used) and entry not in found:
                found.append(entry)
        for entry in found:
            heapq.heappush(self._order, entry)
        return [name for _, _, name in found]

    def _candidate(self, name: str, held: Held) -> Candidate:
        engine, settings = self._engines[name], self.settings
        return Candidate(
            name,
            held,
            self.block_size,
            engine.queued,
            engine.running,
            settings.slots,
            settings.rates,
            engine.last_used,
        )


def _load(engine: _Engine) -> float:
    return engine.running + engine.queued / 256


def simulate(policy: str, settings: SimSettings, work: Conversations | tuple[Sequence[SimRequest], int]) -> Outcome:
    """Run one policy over conversations that are drawn, or over recorded requests with the tokens of a block."""
    if isinstance(work, Conversations):
        sim = SimulatedFleet(policy, settings, work.block_size)
        for number, one in enumerate(draw_conversations(work)):
            _begin(sim, Growing(number, one, work), one)
        return sim.run()
    requests, block_size = work
    sim = SimulatedFleet(policy, settings, block_size)
    start = requests[0].arrival
    for request in requests:
        sim.at(request.arrival - start, _arrival(sim, request, start))
    return sim.run()


def _arrival(sim: SimulatedFleet, request: SimRequest, start: float) -> Callable[[float], None]:
    shifted = SimRequest(request.arrival - start, request.chain, request.tokens, request.answer)
    return lambda now: sim.arrive(shifted, now, lambda then: None)


def _begin(sim: SimulatedFleet, prompt: Growing, one: Conversation) -> None:
    turns = deque(one.turns)

    def ask(now: float) -> None:
        turn = turns.popleft()
        prompt.tokens += turn.user
        request = SimRequest(now, prompt.names(), prompt.tokens, turn.answer)

        def answered(then: float) -> None:
            prompt.tokens += turn.answer
            if turns:
                sim.at(then + turns[0].think, ask)

        sim.arrive(request, now, answered)

    sim.at(one.start, ask)
