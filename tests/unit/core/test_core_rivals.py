"""Rivals: tokens that are scored in the place of a prompt's token, whatever else the step computes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same
from fake_core_device import mark

from headrace.types import Request


def scoring(id: str, prompt: list[int], start: int, rivals: list[int], **more: object) -> Request:
    made = request(id, prompt, 0, prompt_logprobs=0, prompt_logprobs_start=start)
    return replace(made, rivals=tuple(rivals), **more)


def expected(one: Request) -> list[float]:
    found = mark(one.prompt[: one.params.prompt_logprobs_start], 0)
    return [-((found + token) % 997 / 8) for token in one.rivals]


def check(driver: Driver, *requests: Request) -> None:
    for one in requests:
        same(driver.records[one.id], naive(one, driver.scheduler.config, driver.device.eos_every))
        if one.rivals:
            assert driver.records[one.id].rivals == expected(one)


def test_one_sequence_scores_all_that_could_stand_in_a_place() -> None:
    driver = Driver(depth=1)
    one = scoring("a", [*range(2, 12), 20, 21], 10, [30, 31, 20])
    driver.add(one)
    driver.run()
    check(driver, one)
    assert driver.device.computed == 12
    assert driver.steps == 1


def test_a_cached_prefix_is_not_computed_again() -> None:
    driver = Driver(depth=1)
    driver.add(request("before", range(2, 18), 2))
    driver.run()
    one = scoring("a", [*range(2, 18), 20], 16, [30, 31])
    driver.add(one)
    driver.run()
    check(driver, one)
    assert driver.records["a"].cached == 15, "the row behind the prefix is needed, the others are not"


@pytest.mark.parametrize("budget", [12, 13, 16, 32])
def test_rows_of_rivals_count_as_tokens_of_a_step(budget: int) -> None:
    """The device asserts that no step has more rows than its budget."""
    driver = Driver(replace(SMALL, max_num_batched_tokens=budget, max_num_seqs=2))
    ones = [scoring(f"s{at}", [at + 2] * (3 + 5 * at) + [9], 3 + 5 * at, list(range(20, 28))) for at in range(4)]
    driver.add(request("talks", [3, 4, 5], 20), *ones)
    driver.run()
    check(driver, *ones)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_in_any_company(seed: int, depth: int) -> None:
    """Among other requests, with shared prefixes, preemptions and failed steps."""
    rng = random.Random(seed)
    driver = Driver(replace(SMALL, num_blocks=22, max_num_seqs=4, max_num_batched_tokens=24), depth=depth)
    common = [rng.randrange(2, 60) for _ in range(20)]
    ones = []
    for at in range(30):
        prefix = common[: rng.randrange(1, 20)] + [rng.randrange(2, 60) for _ in range(rng.randrange(0, 9))]
        if rng.random() < 0.5:
            ones.append(request(f"r{at}", prefix, rng.randrange(1, 25)))
        else:
            tail = [rng.randrange(2, 60) for _ in range(rng.randrange(1, 5))]
            rivals = [rng.randrange(2, 60) for _ in range(rng.randrange(0, 12))]
            ones.append(scoring(f"r{at}", prefix + tail, len(prefix), rivals))
    for one in ones:
        driver.add(one)
        for _ in range(rng.randrange(3)):
            driver.step()
        if rng.random() < 0.1 and driver.in_flight and driver.in_flight[0][1] is not None:
            driver.fail("the device is tired")
    driver.run()
    for one in ones:
        record = driver.records[one.id]
        same(record, naive(one, driver.scheduler.config))
        if record.reason == "length" and one.rivals:
            assert record.rivals == expected(one)


def test_a_scored_sequence_stays_open_and_another_goes_on_with_the_winner() -> None:
    driver = Driver(depth=2)
    prefix = list(range(2, 12))
    first = replace(scoring("a", [*prefix, 20], 10, [30, 31]), keep=True)
    driver.add(first)
    while driver.scheduler.has_work():
        driver.step()
    for at, winner in enumerate((20, 31)):
        then = replace(request(f"b{at}", [*prefix, winner, 5, 6], 4), extends="a", keep=False)
        driver.add(then)
        while driver.scheduler.has_work():
            driver.step()
        check(driver, then)
        assert driver.records[then.id].cached >= 10 - 2 * at
    driver.idle()
