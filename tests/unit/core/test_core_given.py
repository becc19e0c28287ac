"""Blocks of prompts that other engines will fetch: each is read once, as soon as a step has filled it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same
from fake_block_source import LAYOUT, FakeSource, tiers_of

from headrace.transfer.chain import chain, first_hash
from headrace.types import Request

SIZE = SMALL.block_size
LONG = [5 + at % 7 for at in range(6 * SIZE + 2)]


class GivingSource(FakeSource):
    """Keeps what it is given, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes] = []

    def gives(self, name: bytes) -> bool:
        self.told.append(name)
        return name not in self.kept

    def wants(self, name: bytes, evicted: bool) -> bool:
        return False


def driver_of(source: GivingSource, **sizes: int) -> Driver:
    tiers = replace(tiers_of(source, SIZE), gives=source.gives)
    return Driver(replace(SMALL, **sizes), tiers=tiers)


def given(id: str, prompt: Iterable[int], max_tokens: int = 1, **more: object) -> Request:
    return replace(request(id, prompt, max_tokens, **more), gives_blocks=True)  # type: ignore[arg-type]


def names(prompt: list[int], salt: str = "") -> list[bytes]:
    blocks = (prompt[at : at + SIZE] for at in range(0, len(prompt) - SIZE + 1, SIZE))
    return list(chain(first_hash(LAYOUT, "", salt), blocks))


def test_all_full_blocks_of_a_prompt_are_given_although_nothing_follows() -> None:
    source = GivingSource()
    driver = driver_of(source)
    driver.add(given("a", LONG))
    records = driver.run()
    same(records["a"], naive(driver.requests["a"], driver.scheduler.config))
    assert sorted(source.kept) == sorted(names(LONG))
    assert source.told == names(LONG)


def test_blocks_are_given_while_the_prompt_is_computed() -> None:
    source = GivingSource()
    driver = driver_of(source, max_num_batched_tokens=SIZE)
    driver.add(given("a", LONG))
    seen = []
    driver.run(each=lambda: seen.append(len(source.kept)))
    assert seen == sorted(seen)
    assert {0, 1, 2, 3, 4, 5, 6} <= set(seen)


def test_cached_blocks_are_given_and_known_ones_not_again() -> None:
    source = GivingSource()
    driver = driver_of(source)
    driver.add(request("plain", LONG, 1))
    driver.run()
    assert not source.told
    driver.add(given("a", LONG))
    driver.run()
    assert sorted(source.kept) == sorted(names(LONG))
    steps = driver.steps
    driver.add(given("b", LONG))
    driver.run()
    assert source.told == names(LONG) * 2
    assert driver.steps - steps <= 2


@pytest.mark.parametrize("prompt", [[1], LONG[: SIZE - 1], LONG[:SIZE]])
def test_short_prompts(prompt: list[int]) -> None:
    source = GivingSource()
    driver = driver_of(source)
    driver.add(given("a", prompt))
    driver.run()
    assert sorted(source.kept) == sorted(names(prompt))


def test_an_abort_and_a_preemption_leave_nothing_behind() -> None:
    source = GivingSource()
    driver = driver_of(source, num_blocks=12, max_num_batched_tokens=SIZE)
    driver.add(given("gone", LONG, 9), given("a", [9] * 14, 20), given("b", [8] * 14, 20))
    for _ in range(3):
        driver.step()
    driver.scheduler.abort("gone")
    records = driver.run()
    for one in ("a", "b"):
        same(records[one], naive(driver.requests[one], driver.scheduler.config))
    assert not driver.scheduler.has_work()


def test_a_step_that_fails_gives_nothing_of_its_own() -> None:
    source = GivingSource()
    driver = driver_of(source, max_num_batched_tokens=2 * SIZE)
    driver.add(given("a", LONG), given("b", [9] * (4 * SIZE)))
    driver.step()
    driver.fail("the device is gone")
    driver.run()
    for name in source.kept:
        assert name in {*names(LONG), *names([9] * (4 * SIZE))}


def test_random_requests_give_what_they_should() -> None:
    rng, source = random.Random(4), GivingSource()
    driver = driver_of(source, max_num_batched_tokens=16)
    prompts = {
        f"r{at}": [rng.choice([5, 6])] * rng.randrange(1, 9) + [rng.randrange(2, 60)] * rng.randrange(20)
        for at in range(40)
    }
    for name, prompt in prompts.items():
        driver.add(given(name, prompt, rng.randrange(1, 6)))
        driver.step()
    records = driver.run()
    for name, prompt in prompts.items():
        same(records[name], naive(driver.requests[name], driver.scheduler.config))
        assert set(names(prompt)) <= set(source.kept), name


def test_salts_have_names_of_their_own() -> None:
    source = GivingSource()
    driver = driver_of(source)
    driver.add(given("a", LONG, salt="s"))
    driver.run()
    assert sorted(source.kept) == sorted(names(LONG, "s"))
