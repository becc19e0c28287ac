"""Runs requests through a scheduler and the fake device, some steps ahead of the commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fake_core_device import FakeDevice, choose, mark, names

from headrace.core import CoreConfig, Scheduler
from headrace.core.drafts import DraftSource
from headrace.core.fetches import Tiers
from headrace.types import Delta, Request, SamplingParams, StepPlan, StepResult, TokenLogprobs

SMALL = CoreConfig(
    num_blocks=65,
    block_size=4,
    max_num_seqs=8,
    max_num_batched_tokens=32,
    max_model_len=128,
    vocab_size=64,
)


def request(
    id: str,
    prompt: Iterable[int],
    max_tokens: int = 4,
    arrival: float = 0.0,
    priority: int = 0,
    salt: str = "",
    **params: object,
) -> Request:
    made = replace(SamplingParams(max_tokens=max_tokens), **params)  # type: ignore[arg-type]
    return Request(id, tuple(prompt), made, eos_token_ids=(1,), arrival=arrival, priority=priority, salt=salt)


@dataclass
class Record:
    """All that one request was given, with checks that hold for every stream."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    rivals: list[float] | None = None
    reason: str | None = None
    cached: int = 0
    accepted: int = 0
    rejected: int = 0
    first_scheduled: float | None = None
    error: str | None = None

    def take(self, delta: Delta) -> None:
        assert self.reason is None, f"{delta.request_id} goes on after its end"
        if delta.token_ids and not self.tokens:
            assert delta.first_scheduled is not None
        if delta.prompt_logprobs is not None:
            assert self.prompt_logprobs is None
            self.prompt_logprobs, self.rivals = delta.prompt_logprobs, delta.rivals
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.reason, self.error = delta.finish_reason, delta.error
        self.cached = delta.cached_tokens
        self.accepted += delta.accepted_drafts
        self.rejected += delta.rejected_drafts
        if delta.first_scheduled is not None:
            self.first_scheduled = delta.first_scheduled
        if delta.stop_token is not None:
            assert delta.token_ids[-1] == delta.stop_token


class Driver:
    """`depth` plans are under way before the first of them is committed; 1 is synchronous."""

    def __init__(
        self,
        config: CoreConfig = SMALL,
        depth: int = 2,
        eos_every: int = 0,
        check: bool = True,
        drafts: DraftSource | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.records: dict[str, Record] = {}
        self.scheduler = Scheduler(config, drafts, tiers)
        self.device = FakeDevice(config, self.requests, eos_every)
        self.in_flight: deque[tuple[StepPlan, StepResult | None]] = deque()
        """None: the second part of the step is not launched yet."""
        self.depth, self.checks, self.now, self.steps = depth, check, 0.0, 0

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.scheduler.add(one)
            self.requests[one.id] = one
            self.records[one.id] = Record()

    def schedule(self) -> StepPlan | None:
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self.steps += 1
            if plan.split:
                self.device.forward(plan)
            self.in_flight.append((plan, None if plan.split else self.device.launch(plan)))
            self.complete()
        self.check()
        return plan

    def complete(self) -> None:
        """Launch the rest of the oldest step, since all steps before it are committed."""
        if self.in_flight and self.in_flight[0][1] is None:
            plan, _ = self.in_flight.popleft()
            self.scheduler.complete(plan)
            self.in_flight.appendleft((plan, self.device.sample(plan)))

    def commit(self) -> list[Delta]:
        plan, result = self.in_flight.popleft()
        assert result is not None
        deltas = self.take(self.scheduler.commit(plan, result, self.now))
        self.complete()
        return deltas

    def fail(self, message: str) -> list[Delta]:
        """The oldest plan fails."""
        plan, _ = self.in_flight.popleft()
        deltas = self.take(self.scheduler.fail(plan, message))
        self.complete()
        return deltas

    def take(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            self.records[delta.request_id].take(delta)
        self.check()
        return deltas

    def step(self) -> StepPlan | None:
        # Nothing is launched behind a step whose second part is not.
        waits = bool(self.in_flight) and self.in_flight[-1][1] is None
        plan = None if waits else self.schedule()
        if self.in_flight and (plan is None or len(self.in_flight) >= self.depth):
            self.commit()
        return plan

    def run(self, limit: int = 5000, each: Callable[[], None] = lambda: None) -> dict[str, Record]:
        for _ in range(limit):
            if not self.scheduler.has_work():
                break
            self.step()
            each()
        assert not self.scheduler.has_work(), "it does not come to an end"
        self.take(self.scheduler.drain())
        self.idle()
        return self.records

    def check(self) -> None:
        if self.checks:
            self.scheduler.check()

    def idle(self) -> None:
        """The leak check."""
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.blocks_held, stats.kv_tokens) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached == self.scheduler.config.num_blocks - 1


def naive(one: Request, config: CoreConfig = SMALL, eos_every: int = 0) -> Record:
    """The expected answer of a request, independently of other requests. No blocks, no cache, no steps."""
    params, record = one.params, Record()
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(one.eos_token_ids))
    unlisted = set(range(config.vocab_size)) - set(params.allowed_token_ids or range(config.vocab_size))

    def scored(found: int, token: int, count: int) -> TokenLogprobs:
        top = tuple((t, -t / 64) for t in ((found + i) % config.vocab_size for i in range(count)))
        return TokenLogprobs(token, -(found % 997 / 8), found % 31 + 1, top)

    if params.prompt_logprobs is not None:
        given = enumerate(one.prompt[1:], 1)
        marks = [(mark(one.prompt[:at], 0) + token, token) for at, token in given]
        record.prompt_logprobs = [None, *(scored(m, token, params.prompt_logprobs) for m, token in marks)]
        start = min(params.prompt_logprobs_start, len(one.prompt))
        record.prompt_logprobs[:start] = [None] * start
    record.reason = "length"
    while len(record.tokens) < params.max_tokens:
        found = mark(one.prompt + tuple(record.tokens), params.seed or 0)
        banned = stops if len(record.tokens) < params.min_tokens else set()
        token = choose(found, config.vocab_size, eos_every, frozenset(unlisted | banned))
        record.tokens.append(token)
        if params.logprobs is not None:
            entry = scored(found, token, params.logprobs)
            record.logprobs.append(replace(entry, top=names(found, params.logprob_token_ids) or entry.top))
        if token in stops:
            record.reason = "stop"
            break
    return record


def same(got: Record, expected: Record) -> None:
    """Everything that must not depend on other requests, cache or chunking. A truncated stream is the beginning of the
    full one."""
    if got.reason in ("abort", "error", None):
        assert got.tokens == expected.tokens[: len(got.tokens)]
        assert got.logprobs == expected.logprobs[: len(got.logprobs)]
        assert got.prompt_logprobs in (None, expected.prompt_logprobs)
    else:
        assert (got.tokens, got.reason) == (expected.tokens, expected.reason)
        assert (got.logprobs, got.prompt_logprobs) == (expected.logprobs, expected.prompt_logprobs)
