"""A pipeline of stages: several steps in flight, of different sequences, with the tokens of every earlier one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same
from test_core_constrained import add
from test_core_drafts import Oracle, requests
from test_core_forced import ForcingMatcher, check, expected_of
from test_core_random import TINY, Fuzz

from headrace.core import CoreConfig
from headrace.core.drafts import DraftSource
from headrace.types import NO_TOKEN, StepPlan


class PipelineDriver(Driver):
    """Checks every plan: the first stage has no tokens but those that the plan holds."""

    def __init__(self, config: CoreConfig, eos_every: int = 0, drafts: DraftSource | None = None) -> None:
        super().__init__(config, config.stages, eos_every, drafts=drafts)
        self.most_in_flight = 0

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        if plan is not None:
            assert not plan.split
            assert NO_TOKEN not in plan.token_ids
            assert plan.lengths is None
            self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return plan


class PipelineFuzz(Fuzz):
    def __init__(self, seed: int, stages: int) -> None:
        super().__init__(seed, stages)
        self.config = replace(TINY, stages=stages)
        self.driver = PipelineDriver(self.config, eos_every=9)


@pytest.mark.parametrize(("seed", "stages"), [(11, 2), (12, 3)])
def test_any_order_of_calls_gives_the_tokens_of_the_model(seed: int, stages: int) -> None:
    fuzz = PipelineFuzz(seed, stages)
    for _ in range(5_000):
        fuzz.one()
    fuzz.driver.run()
    fuzz.settle()
    assert fuzz.number > 150
    assert fuzz.driver.scheduler.stats().preemptions > 10
    assert isinstance(fuzz.driver, PipelineDriver)
    assert fuzz.driver.most_in_flight == stages


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("blocks", "budget"), [(14, 32), (65, 32), (65, 9)])
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.7, 0.5)])
def test_grammars_and_drafts_overlap_too(stages: int, blocks: int, budget: int, right: float, eager: float) -> None:
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget, stages=stages)
    rng = random.Random(f"{stages} {blocks} {budget} {right}")
    work = [replace(one, params=replace(one.params, min_tokens=0, allowed_token_ids=None)) for one in requests(rng, 14)]
    oracle = Oracle(config, right, eager, most=6, seed=stages, eos_every=7)
    driver = PipelineDriver(config, eos_every=7, drafts=oracle)
    starts = {one.id: rng.choice([(), (5, 6, 7), (11,)]) for i, one in enumerate(work) if i % 3}
    for one in work:
        made = ForcingMatcher(64, 1000, starts[one.id]) if one.id in starts else None
        if made is not None:
            oracle.matchers[one.id] = ForcingMatcher(64, 1000, starts[one.id])
        add(driver, one, made)
    records = driver.run()
    for one in work:
        if one.id in starts:
            check(records[one.id], expected_of(one, ForcingMatcher(64, 1000, starts[one.id]), config))
        else:
            same(records[one.id], naive(one, config, 7))
    assert oracle.accepted > 0
    assert driver.most_in_flight == stages


@pytest.mark.parametrize("stages", [2, 3])
def test_every_stage_gets_an_equal_share_of_the_sequences(stages: int) -> None:
    driver = PipelineDriver(replace(SMALL, stages=stages))
    driver.add(*(request(f"r{i}", [5 + i], 30) for i in range(6)))
    sizes: list[int] = []
    while len(sizes) < 8 * stages:
        plan = driver.step()
        if plan is None:
            continue
        together = [name for one, _ in driver.in_flight for name in one.request_ids]
        assert len(together) == len(set(together)), "a sequence has one token in flight"
        sizes.append(plan.num_seqs)
    assert sizes[2 * stages :] == [6 // stages] * 6 * stages


def test_one_sequence_waits_for_its_own_token() -> None:
    driver = PipelineDriver(replace(SMALL, stages=2))
    driver.add(request("r", [5, 6], 4))
    assert driver.schedule() is not None
    assert driver.schedule() is None
    driver.commit()
    assert driver.schedule() is not None
    driver.run()
    assert len(driver.records["r"].tokens) == 4


def test_chunks_of_one_prompt_follow_each_other() -> None:
    """No chunk but the last samples: the stages compute them one behind the other."""
    driver = PipelineDriver(replace(SMALL, stages=3, max_num_batched_tokens=8))
    driver.add(request("r", range(2, 26), 4))
    assert [plan.num_tokens for plan in (driver.schedule(), driver.schedule(), driver.schedule()) if plan] == [8, 8, 8]
    assert driver.schedule() is None
    driver.run()
    same(driver.records["r"], naive(driver.requests["r"], driver.scheduler.config))


def test_an_abort_drops_the_token_in_flight() -> None:
    driver = PipelineDriver(replace(SMALL, stages=2))
    driver.add(request("gone", [5, 6], 20), request("stays", [7, 8], 8))
    for _ in range(5):
        driver.step()
    assert driver.scheduler.abort("gone")
    driver.run()
    assert driver.records["gone"].reason == "abort"
    same(driver.records["stays"], naive(driver.requests["stays"], driver.scheduler.config))
