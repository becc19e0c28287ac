"""Prefixes that are fetched from beside the device while others run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, Record, naive, request, same
from fake_block_source import FakeSource, tiers_of

from headrace.core import Scheduler
from headrace.types import Request

SIZE = SMALL.block_size
LONG = [5 + at % 7 for at in range(6 * SIZE + 2)]
"""Six full blocks and two tokens."""


def driver_of(source: FakeSource, **sizes: int) -> Driver:
    return Driver(replace(SMALL, **sizes), tiers=tiers_of(source, SIZE))


def stored(*prompts: Iterable[int], salt: str = "") -> FakeSource:
    """A source with the blocks of these prompts."""
    source = FakeSource()
    driver = driver_of(source)
    for at, prompt in enumerate(prompts):
        for turn in range(2):  # the second use makes a block worth keeping
            driver.add(request(f"{at}.{turn}", prompt, 1, salt=salt))
            driver.run()
    for turn in range(4):  # steps that may read what is left
        driver.add(request(f"more{turn}", [3], 1))
        driver.run()
    assert len(source.kept) >= sum(len(list(prompt)) // SIZE for prompt in prompts) - 1
    source.asked.clear()
    source.released.clear()
    source.delivered = 0
    return source


def answers(driver: Driver, *requests: Request) -> list[Record]:
    driver.add(*requests)
    records = driver.run()
    for one in requests:
        same(records[one.id], naive(one, driver.scheduler.config))
    return [records[one.id] for one in requests]


def test_a_prefix_that_is_found_is_not_computed() -> None:
    source = stored(LONG)
    driver = driver_of(source)
    (record,) = answers(driver, request("a", LONG, 3))
    assert record.cached == 6 * SIZE
    assert driver.device.computed == 2 + 2
    assert source.delivered == 6
    source.idle()


def test_what_was_used_once_is_not_stored_until_it_is_evicted() -> None:
    source = FakeSource()
    driver = driver_of(source, num_blocks=9)
    answers(driver, request("a", LONG, 1))
    assert not source.kept
    answers(driver, request("b", [4] * 26, 1))
    assert source.kept, "blocks that left the cache were offered"
    (record,) = answers(driver, request("c", LONG, 1))
    assert record.cached > 0
    source.idle()


def test_others_run_while_blocks_are_on_their_way() -> None:
    source = stored(LONG)
    source.delay, source.patience = 5, 99.0
    driver = driver_of(source)
    driver.add(request("far", LONG, 2), request("near", [9, 9, 9], 8))
    for _ in range(4):
        driver.step()
        stats = driver.scheduler.stats()
        assert (stats.running, stats.waiting, stats.fetching) == (1, 1, 1)
    records = driver.run()
    for one in driver.requests.values():
        same(records[one.id], naive(one))
    assert records["far"].cached == 6 * SIZE


def test_a_waiting_sequence_takes_no_slot() -> None:
    source = stored(LONG)
    source.delay, source.patience = 3, 99.0
    driver = driver_of(source, max_num_seqs=1)
    driver.add(request("far", LONG, 2), request("near", [9, 9, 9], 2, arrival=1.0))
    records = driver.run()
    assert records["near"].first_scheduled < records["far"].first_scheduled  # type: ignore[operator]
    assert records["far"].cached == 6 * SIZE


def test_two_that_wait_for_the_same_prefix_fetch_it_once() -> None:
    source = stored(LONG)
    source.delay, source.patience = 3, 99.0
    driver = driver_of(source)
    found = answers(driver, request("a", LONG, 2), request("b", LONG, 2), request("c", [*LONG[:13], 3, 3], 2))
    assert [record.cached >= 12 for record in found] == [True] * 3
    assert source.delivered == 6
    source.idle()


def test_salts_and_adapters_are_apart() -> None:
    source = stored(LONG, salt="mine")
    (record,) = answers(driver_of(source), request("a", LONG, 2))
    assert record.cached == 0
    (record,) = answers(driver_of(source), request("a", LONG, 2, salt="mine"))
    assert record.cached == 6 * SIZE


def test_what_never_comes_is_computed_after_the_deadline() -> None:
    source = stored(LONG)
    source.delay = 10**9
    driver = driver_of(source)
    first, _ = answers(driver, request("a", LONG, 2), request("b", LONG, 2))
    assert first.cached == 0
    source.idle()


@pytest.mark.parametrize("lost", range(6))
def test_what_is_missing_is_computed(lost: int) -> None:
    source = stored(LONG)
    names = list(source.kept)
    driver = driver_of(source)
    driver.add(request("a", LONG, 2))
    driver.scheduler._fetches.begin(0.0, 1, 0)  # the source is asked
    del source.kept[names[lost]]
    records = driver.run()
    same(records["a"], naive(driver.requests["a"]))
    source.idle()


def test_an_abort_releases_what_was_reserved() -> None:
    source = stored(LONG)
    source.delay = 10
    driver = driver_of(source)
    driver.add(request("a", LONG, 2), request("b", LONG, 2))
    driver.step()
    assert driver.scheduler.stats().blocks_held == 6
    assert driver.scheduler.abort("a")
    driver.check()
    assert driver.scheduler.stats().blocks_held == 6, "another waits for them"
    assert driver.scheduler.abort("b")
    driver.check()
    driver.take(driver.scheduler.drain())
    driver.idle()
    source.idle()


def test_a_failed_step_loses_what_it_loaded() -> None:
    source = stored(LONG)
    driver = driver_of(source)
    driver.add(request("a", LONG, 2), request("b", [8] * 9, 6))
    while not driver.in_flight or not driver.in_flight[-1][0].loads:
        driver.schedule()
    plan, _ = driver.in_flight[-1]
    for block, _ in plan.loads:
        driver.device.kv[block] = -(2**50)
    while driver.in_flight[0][0] is not plan:
        driver.commit()
    driver.fail("lost")
    (record,) = answers(driver, request("again", LONG, 2))
    assert record.cached == 6 * SIZE
    source.idle()


def test_what_a_failed_step_should_have_filled_is_not_offered() -> None:
    source = FakeSource()
    driver = driver_of(source)
    driver.add(request("a", LONG, 1))
    driver.schedule()
    driver.add(request("b", LONG, 1))
    driver.schedule()
    driver.add(request("c", LONG, 1))
    driver.device.kv[1:] = -(2**50)
    driver.fail("lost")
    driver.run()
    answers(driver_of(source), request("a", LONG, 2))
    source.idle()


def test_running_sequences_come_before_fetches() -> None:
    source = stored(LONG)
    source.delay = 10**9
    driver = driver_of(source, num_blocks=14)
    driver.add(request("a", [9] * 12, 30))
    for _ in range(4):
        driver.step()
    driver.add(request("b", LONG, 2))
    records = driver.run()
    for one in driver.requests.values():
        same(records[one.id], naive(one, driver.scheduler.config))
    assert driver.scheduler.stats().preemptions == 0, "the fetch gave way"
    source.idle()


def test_what_takes_longer_than_computing_is_computed() -> None:
    source = stored(LONG)
    driver = driver_of(source)
    answers(driver, request("warm", list(range(2, 60)), 1))
    assert driver.scheduler._fetches.rate.seconds is not None
    source.seconds = 1000.0
    (record,) = answers(driver, request("a", LONG, 2))
    assert record.cached == 0
    held = len(source.kept)
    for turn in range(3):
        answers(driver, request(f"once{turn}", [7] * 17, 1))
    assert len(source.kept) == held, "what would not be fetched is not stored"
    source.seconds = 0.0
    driver.scheduler.reset_cache()
    answers(driver, request("b", [*LONG[: 2 * SIZE], 3, 3], 2))
    answers(driver, request("c", [6] * 17, 1), request("d", [6] * 17, 1), request("e", [5], 3))
    assert len(source.kept) > held


def test_prompt_logprobs_are_those_of_the_whole_prompt() -> None:
    source = stored(LONG)
    answers(driver_of(source), request("a", LONG, 2, prompt_logprobs=1, logprobs=1))
    found = request("b", LONG, 2, prompt_logprobs=1, prompt_logprobs_start=4 * SIZE + 1, logprobs=1)
    (record,) = answers(driver_of(source), found)
    assert record.cached == 4 * SIZE


def test_numbers_that_are_not_finite_are_forgotten() -> None:
    source = stored(LONG)
    driver = driver_of(source)
    driver.add(request("a", LONG, 2))
    assert driver.scheduler.schedule(1.0) is None
    plan = driver.scheduler.schedule(2.0)
    assert plan is not None
    result = driver.device.launch(plan)
    result.tokens[:] = -3
    driver.take(driver.scheduler.commit(plan, result, 3.0))
    assert driver.records["a"].error is not None
    assert not source.kept


def test_without_tiers_plans_are_as_before() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(request("a", LONG, 1))
    plan = scheduler.schedule(1.0)
    assert plan is not None
    assert (plan.stores, plan.loads, scheduler.tier_stats()) == (None, (), ())
    assert scheduler._cache.names is None
