"""Sequences that the device places: steps are planned before it is known how many drafts of the last one were right."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same
from test_core_constrained import add
from test_core_drafts import Oracle, requests
from test_core_forced import ForcingMatcher, check, expected_of

from headrace.core import CoreConfig
from headrace.core.drafts import DraftRow, StepSize
from headrace.types import ON_DEVICE, Request


class PlacedOracle(Oracle):
    """The device makes the drafts of a share of the sequences, out of the answers. Sometimes it finds none."""

    def __init__(self, config: CoreConfig, right: float, eager: float, seed: int, eos_every: int, share: float) -> None:
        super().__init__(config, right, eager, 6, seed, eos_every)
        self.share = share
        self.in_flight = range(1000)
        self.ahead = 0
        self.grown: dict[str, tuple[int, int]] = {}
        """By sequence, at its last step: the tokens that the device knew, and what may have come, right or wrong."""
        """Rows that were asked for while the number of tokens before them was not known."""

    def places(self, request: Request) -> bool:
        return zlib.crc32(request.id.encode()) % 100 < 100 * self.share

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        for row in (row for row in rows if row.ahead is not None):
            known, grown = row.context - 1, row.context - 1 + row.wrong
            true = int(self.lengths[row.slot]) if row.uncertain else known
            assert known - row.uncertain <= true <= known
            before = self.grown.get(row.sequence, (true, grown))
            assert true - before[0] <= grown - before[1], "a drafter knows how much has come since its last round"
            self.grown[row.sequence] = true, grown
        found = super().draft(step, size, rows)
        self.ahead += sum(row.ahead is not None and row.ahead > 1 for row in rows)
        return found

    def guess(self, id: str, known: list[int], most: int) -> list[int]:
        at = len(known) - len(self.prompts[id])
        answer = self.answers[id][at : at + self.rng.choice([0, most, most])]
        return [t if self.rng.random() < self.right else 2 + t % 61 for t in answer]

    def drive(self, depth: int) -> Driver:
        driver = Driver(self.config, depth, eos_every=self.eos_every, drafts=self)
        driver.device.guess = self.guess
        self.lengths = driver.device.lengths
        self.prompts = {}
        return driver

    def begin(self, request: Request) -> bool:
        self.prompts[request.id] = request.prompt
        return super().begin(request)


def plain(work: list[Request]) -> list[Request]:
    """Without min_tokens and lists, which a grammar's requests of these tests don't have."""
    return [replace(one, params=replace(one.params, min_tokens=0, allowed_token_ids=None)) for one in work]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("blocks", "budget"), [(14, 32), (65, 32), (65, 9)])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.0, 1.0), (0.7, 0.5), (0.9, 0.1)])
def test_the_tokens_of_the_definition(
    depth: int, blocks: int, budget: int, share: float, right: float, eager: float
) -> None:
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget)
    rng = random.Random(f"{depth} {blocks} {budget} {share} {right} {eager}")
    work = requests(rng, 14)
    for at, one in enumerate(work):
        least = min(one.params.min_tokens, one.params.max_tokens or 0) if share < 1 else 0
        work[at] = replace(one, params=replace(one.params, min_tokens=least))
    oracle = PlacedOracle(config, right, eager, depth, 9, share)
    driver = oracle.drive(depth)
    driver.add(*work)
    records = driver.run()
    for one in work:
        same(records[one.id], naive(one, config, 9))
    assert not oracle.known, "every sequence is ended"
    assert sum(record.accepted for record in records.values()) == oracle.accepted
    assert sum(record.accepted + record.rejected for record in records.values()) == oracle.drafted
    assert right > 0 or oracle.accepted == 0
    assert depth == 1 or share < 1 or eager < 0.5 or oracle.ahead > 0


def test_steps_overlap_while_lengths_are_not_known() -> None:
    oracle = PlacedOracle(SMALL, 1.0, 1.0, 0, 0, 1.0)
    driver = oracle.drive(2)
    driver.add(request("r", [5, 6, 7], 60))
    overlapping = 0

    def look() -> None:
        nonlocal overlapping
        plans = [plan for plan, _ in driver.in_flight if plan.lengths is not None]
        overlapping += any(plan.lengths is not None and ON_DEVICE in plan.lengths for plan in plans)

    driver.run(each=look)
    plain = Driver(SMALL)
    plain.add(request("r", [5, 6, 7], 60))
    plain.run()
    assert driver.records["r"].tokens == plain.records["r"].tokens
    assert overlapping > 3
    assert driver.steps < 0.7 * plain.steps


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.0, 1.0), (0.7, 0.5)])
@pytest.mark.parametrize(("blocks", "budget"), [(14, 32), (65, 32), (65, 9)])
def test_in_steps_of_two_parts(depth: int, blocks: int, budget: int, right: float, eager: float) -> None:
    """Other sequences of the steps have grammars."""
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget)
    rng = random.Random(f"{depth} {blocks} {budget} {right} {eager}")
    work = plain(requests(rng, 14))
    oracle = PlacedOracle(config, right, eager, depth, 7, 1.0)
    driver = oracle.drive(depth)
    shapes = {one.id: (rng.choice([6, 1000]), rng.choice([(), (5, 6, 7)])) for one in work if rng.random() < 0.4}
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


@pytest.mark.parametrize("drafted", [False, True])
def test_a_grammar_beside_it_ends_no_overlap_for_good(drafted: bool) -> None:
    """A sequence with a grammar is not placed. Steps wait for it while it has drafts, and no longer; the other one has
    drafts all the time."""
    oracle = PlacedOracle(SMALL, 1.0, 1.0, 0, 7, 1.0)
    driver = oracle.drive(2)
    matcher = ForcingMatcher(64, 1000, ())
    oracle.matchers["g"] = ForcingMatcher(64, 1000, ())
    constrained = replace(request("g", [8, 9], 20), max_drafts=None if drafted else 0)
    free = request("r", [5, 6, 7], 90, ignore_eos=True)
    add(driver, free, None)
    add(driver, constrained, matcher)
    overlapping, together = 0, 0

    def look() -> None:
        nonlocal overlapping, together
        ahead = [plan for plan, _ in driver.in_flight if plan.lengths is not None and ON_DEVICE in plan.lengths]
        overlapping += bool(ahead)
        together += any("g" in plan.request_ids for plan in ahead)

    driver.run(each=look)
    same(driver.records["r"], naive(free, SMALL, 7))
    check(driver.records["g"], expected_of(constrained, ForcingMatcher(64, 1000, ()), SMALL))
    assert driver.records["r"].accepted > 45
    assert overlapping > 3
    assert drafted or together > 3


@pytest.mark.parametrize("seed", range(12))
def test_aborts_and_failures_with_drafts_under_way(seed: int) -> None:
    rng = random.Random(seed)
    oracle = PlacedOracle(replace(SMALL, num_blocks=rng.choice([20, 65])), 0.7, 0.8, seed, 9, 0.8)
    driver = oracle.drive(2 + seed % 2)
    work = [request(f"r{i}", range(5, 12 + i), 40, seed=i, logprobs=1) for i in range(8)]
    driver.add(*work)
    for _ in range(80):
        driver.step()
        if rng.random() < 0.1:
            driver.scheduler.abort(f"r{rng.randrange(8)}")
        if rng.random() < 0.04 and driver.in_flight:
            driver.fail("broken")
    records = driver.run()
    for one in work:
        same(records[one.id], naive(one, SMALL, 9))
    assert not oracle.known


def test_a_request_may_limit_its_drafts() -> None:
    oracle = PlacedOracle(SMALL, 1.0, 1.0, 0, 0, 1.0)
    driver = oracle.drive(2)
    driver.add(replace(request("r", [5, 6, 7], 40), max_drafts=2))
    longest = 0

    def look() -> None:
        nonlocal longest
        longest = max([longest, *(plan.num_rows for plan, _ in driver.in_flight)])

    driver.run(each=look)
    assert 1 < longest <= 3


def test_bans_up_to_a_position_keep_a_sequence_on_the_host() -> None:
    oracle = PlacedOracle(SMALL, 1.0, 1.0, 0, 7, 1.0)
    driver = oracle.drive(2)
    one = request("r", [5, 6, 7], 40, min_tokens=20, seed=1)
    driver.add(one)

    def look() -> None:
        assert all(plan.lengths is None for plan, _ in driver.in_flight)

    driver.run(each=look)
    same(driver.records["r"], naive(one, SMALL, 7))
    assert oracle.accepted > 0
