"""Speculative decoding in the core: the same tokens, logprobs and ends, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same
from test_core_constrained import add
from test_core_forced import ForcingMatcher, check, expected_of

from headrace.core import CoreConfig
from headrace.core.drafts import DraftRow, StepSize
from headrace.types import Request


class Oracle:
    """Knows the answers. A draft is right with probability `right`; sequences are held with probability `eager`."""

    def __init__(self, config: CoreConfig, right: float, eager: float, most: int, seed: int, eos_every: int) -> None:
        self.config, self.right, self.eager, self.most, self.eos_every = config, right, eager, most, eos_every
        self.rng = random.Random(seed)
        self.answers: dict[str, list[int]] = {}
        self.matchers: dict[str, ForcingMatcher] = {}
        """New grammars of the requests that have one."""
        self.known: dict[str, int] = {}
        self.holding: dict[str, bool] = {}
        self.open: dict[int, list[int]] = {}
        """By step: the number of drafts of each row."""
        self.drafted = self.accepted = 0
        self.in_flight = range(3)
        """What `extend` may be told."""

    def begin(self, request: Request) -> bool:
        matcher = self.matchers.get(request.id)
        found = expected_of(request, matcher, self.config) if matcher else naive(request, self.config, self.eos_every)
        self.answers[request.id] = found.tokens
        self.known[request.id] = 0
        self.holding[request.id] = False
        return True

    def places(self, request: Request) -> bool:
        return False

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        start = self.known[sequence]
        assert list(tokens) == self.answers[sequence][start : start + len(tokens)]
        assert in_flight in self.in_flight
        assert tokens
        self.known[sequence] += len(tokens)
        self.holding[sequence] = self.holding[sequence] or self.rng.random() < self.eager

    def pause(self, sequence: str, keep: bool) -> None:
        assert sequence in self.known

    def end(self, sequence: str, keep: bool) -> None:
        del self.known[sequence], self.holding[sequence]

    def held(self, sequence: str) -> bool:
        return self.holding[sequence]

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        assert len(rows) <= size.sampled <= size.tokens <= self.config.max_num_batched_tokens
        found = []
        for row in rows:
            at = self.known[row.sequence]
            count = self.rng.randint(0, max(0, min(self.most, row.most)))
            answer = [*self.answers[row.sequence][at : at + count], *[5] * count][:count]
            found.append([t if self.rng.random() < self.right else (t + 1) % 64 for t in answer])
            if not count:
                self.holding[row.sequence] = self.rng.random() < self.eager
        self.open[step] = [len(tokens) for tokens in found]
        return found

    def rest(self) -> int:
        return self.rng.choice([0, 0, 0, 0, 0, 3])

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        for most, count, right in zip(self.open.pop(step, []), made, accepted, strict=True):
            if right is not None:
                assert 0 <= right <= count <= most
                self.drafted += count
                self.accepted += right


def requests(rng: random.Random, count: int) -> list[Request]:
    return [
        request(
            f"r{i}", [rng.randrange(2, 64) for _ in range(rng.randrange(1, 20))], rng.randrange(1, 30),
            arrival=float(i), seed=i, logprobs=rng.choice([None, 0, 2]), logprob_token_ids=(9, i) if i % 3 == 0 else (),
            prompt_logprobs=rng.choice([None, None, 1]),
            repetition_penalty=rng.choice([1.0, 1.2]), stop_token_ids=rng.choice([(), (9,)]),
            min_tokens=rng.choice([0, 0, 5]), allowed_token_ids=rng.choice([None, None, tuple(range(40))]),
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("blocks", "budget"), [(14, 32), (65, 32), (65, 9)])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.0, 1.0), (0.7, 0.5), (0.9, 0.1)])
def test_the_tokens_of_the_definition(depth: int, blocks: int, budget: int, right: float, eager: float) -> None:
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget)
    rng = random.Random(f"{depth} {blocks} {budget} {right} {eager}")
    work = requests(rng, 14)
    work = [replace(one, params=replace(one.params, min_tokens=min(one.params.min_tokens, one.params.max_tokens or 0)))
            for one in work]  # fmt: skip
    oracle = Oracle(config, right, eager, most=6, seed=depth, eos_every=9)
    driver = Driver(config, depth, eos_every=9, drafts=oracle)
    driver.add(*work)
    records = driver.run()
    for one in work:
        same(records[one.id], naive(one, config, 9))
    assert not oracle.known, "every sequence is ended"
    assert sum(record.accepted for record in records.values()) == oracle.accepted
    assert sum(record.accepted + record.rejected for record in records.values()) == oracle.drafted
    if right == 0:
        assert oracle.accepted == 0
    if right == 1 and budget > 9:
        assert oracle.accepted > oracle.drafted / 2  # drafts behind a stop are wrong


def test_right_drafts_take_fewer_steps() -> None:
    oracle = Oracle(SMALL, 1.0, 1.0, most=4, seed=0, eos_every=0)
    plain, fast = Driver(SMALL), Driver(SMALL, drafts=oracle)
    for driver in (plain, fast):
        driver.add(request("r", [5, 6, 7], 60))
        driver.run()
    assert plain.records["r"].tokens == fast.records["r"].tokens
    assert fast.steps < plain.steps / 2


def test_a_request_without_drafts_is_not_drafted() -> None:
    oracle = Oracle(SMALL, 1.0, 1.0, most=4, seed=0, eos_every=7)
    driver = Driver(SMALL, drafts=oracle, eos_every=7)
    driver.add(replace(request("none", [5, 6, 7], 20), max_drafts=0))
    driver.run()
    assert oracle.answers == {}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("blocks", "budget"), [(14, 32), (65, 32), (65, 9)])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.0, 1.0), (0.7, 0.5)])
def test_grammars_and_drafts_together(depth: int, blocks: int, budget: int, right: float, eager: float) -> None:
    """Rows after a draft have the mask, and the forced tokens, of the text up to it."""
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget)
    rng = random.Random(f"{depth} {blocks} {budget} {right} {eager}")
    plain = {"min_tokens": 0, "allowed_token_ids": None}
    work = [replace(one, params=replace(one.params, **plain)) for one in requests(rng, 14)]
    oracle = Oracle(config, right, eager, most=6, seed=depth, eos_every=7)
    driver = Driver(config, depth, eos_every=7, drafts=oracle)
    shapes = {one.id: (rng.choice([6, 1000]), rng.choice([(), (5, 6, 7)])) for one in work if rng.random() < 0.7}
    for one in work:
        if one.id in shapes:
            oracle.matchers[one.id] = ForcingMatcher(64, *shapes[one.id])
        add(driver, one, ForcingMatcher(64, *shapes[one.id]) if one.id in shapes else None)
    records = driver.run()
    for one in work:
        if one.id in shapes:
            check(records[one.id], expected_of(one, ForcingMatcher(64, *shapes[one.id]), config))
        else:
            same(records[one.id], naive(one, config, 7))
    assert not oracle.known
    assert right == 0 or budget == 9 or oracle.accepted > 4


def test_a_request_may_limit_its_drafts() -> None:
    oracle = Oracle(SMALL, 1.0, 1.0, most=6, seed=0, eos_every=0)
    driver = Driver(SMALL, drafts=oracle)
    driver.add(replace(request("r", [5, 6, 7], 40), max_drafts=2))
    longest = 0

    def look() -> None:
        nonlocal longest
        longest = max([longest, *(plan.num_rows for plan, _ in driver.in_flight)])

    driver.run(each=look)
    assert longest <= 3


def test_aborts_and_failures_with_drafts_under_way() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        oracle = Oracle(SMALL, 0.7, 0.7, most=5, seed=seed, eos_every=9)
        driver = Driver(depth=2, eos_every=9, drafts=oracle)
        work = [request(f"r{i}", range(5, 12 + i), 40, seed=i, logprobs=1) for i in range(8)]
        driver.add(*work)
        for _ in range(60):
            driver.step()
            if rng.random() < 0.1:
                driver.scheduler.abort(f"r{rng.randrange(8)}")
            if rng.random() < 0.03 and driver.in_flight:
                driver.fail("broken")
        records = driver.run()
        for one in work:
            same(records[one.id], naive(one, SMALL, 9))
        assert not oracle.known


class Resting(Oracle):
    """Never drafts; rests for four steps after each question. Writes down what it is told and asked."""

    def __init__(self) -> None:
        super().__init__(SMALL, 0.0, 0.0, most=0, seed=0, eos_every=0)
        self.told: list[tuple[str, int]] = []
        self.asked: list[int] = []
        self.rests = 4

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        super().extend(sequence, tokens, in_flight)
        self.told.append((sequence, len(tokens)))

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        assert not rows
        self.asked.append(step)
        return super().draft(step, size, rows)

    def rest(self) -> int:
        return self.rests


def test_a_source_at_rest_is_neither_told_nor_asked() -> None:
    source = Resting()
    driver = Driver(SMALL, depth=2, drafts=source)
    work = [request(f"r{at}", range(5, 9), 21, seed=at) for at in range(3)]
    driver.add(*work)
    records = driver.run()
    for one in work:
        same(records[one.id], naive(one, SMALL))
    assert source.asked[:5] == [1, 6, 11, 16, 21]
    own = [count for name, count in source.told if name == "r1"]
    assert own[0] == 1, "the first token is told at once"
    assert max(own) == 5
    assert set(own[2:-1]) == {5}
    assert sum(own) == 21, "in the end all tokens are told"


class Eager(Oracle):
    """Holds every sequence, and asks for a rest all the same."""

    def rest(self) -> int:
        return 9


def test_a_sequence_that_is_held_is_planned_whatever_rest_its_source_asks_for() -> None:
    source = Eager(SMALL, 1.0, 1.0, most=4, seed=0, eos_every=0)
    source.in_flight = range(9)
    driver = Driver(SMALL, depth=2, drafts=source)
    one, other = request("one", range(5, 9), 40), request("other", range(6, 9), 40)
    driver.add(one)
    for _ in range(3):
        driver.step()
    driver.add(other)
    idle = 0

    def count() -> None:
        nonlocal idle
        idle += not driver.in_flight

    records = driver.run(each=count)
    same(records["one"], naive(one, SMALL))
    same(records["other"], naive(other, SMALL))
    assert source.accepted > 40
    assert idle <= driver.steps, "a sequence waits for its own commit, and for nothing else"


def test_a_sequence_is_taken_up_while_the_source_rests() -> None:
    """Its first token decides whether it is worth to wait, and a prediction is followed from the beginning."""
    source = Resting()
    driver = Driver(SMALL, depth=2, drafts=source)
    source.rests = 50
    driver.add(request("old", range(5, 9), 40))
    for _ in range(6):
        driver.step()
    before = len(source.asked)
    driver.add(request("new", range(9, 12), 9))
    for _ in range(4):
        driver.step()
    assert ("new", 1) in source.told
    assert len(source.asked) == before
    source.rests = 0
    driver.add(replace(request("predicts", range(2, 6), 9), predicted=(5, 6)))
    for _ in range(4):
        driver.step()
    assert len(source.asked) > before + 2
    driver.run()


class Ended(Oracle):
    """Holds `a` from its first token to the first question about it, and then `b`. Rests while none is held."""

    def __init__(self) -> None:
        super().__init__(SMALL, 0.0, 0.0, most=0, seed=0, eos_every=0)
        self.asked: list[tuple[int, list[str]]] = []

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        super().extend(sequence, tokens, in_flight)
        self.holding[sequence] = sequence == ("b" if self.asked and self.asked[-1][1] else "a")

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        self.asked.append((step, [row.sequence for row in rows]))
        self.open[step] = [0] * len(rows)
        self.holding.update((row.sequence, False) for row in rows)
        return [[] for _ in rows]

    def rest(self) -> int:
        return 0 if any(self.holding.values()) else 9


def test_a_sequence_that_is_held_ends_the_rest() -> None:
    """The step in which the last one was held is committed when the rest has begun."""
    source = Ended()
    driver = Driver(SMALL, depth=2, drafts=source)
    work = [request("a", range(5, 9), 12, seed=1), request("b", range(5, 9), 12, seed=2)]
    driver.add(*work)
    records = driver.run()
    for one in work:
        same(records[one.id], naive(one, SMALL))
    assert source.asked[1:3] == [(3, ["a"]), (5, ["b"])], "only the step in flight comes in between"
