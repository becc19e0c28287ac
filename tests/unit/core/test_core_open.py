"""Open sequences and pins: a request goes on in the slot of another, with the tokens that it would have anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.core.open_sequences import LEASE
from headrace.errors import Overloaded
from headrace.types import Request


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, SMALL.vocab_size) for _ in range(count)]


def kept(id: str, prompt: Iterable[int], tokens: int = 4, extends: str = "", **params: Any) -> Request:
    return replace(request(id, prompt, tokens, **params), keep=True, extends=extends)


def run(driver: Driver, *requests: Request) -> None:
    """Run to the end; what is open stays open."""
    driver.add(*requests)
    while driver.scheduler.has_work():
        driver.step()
    for one in requests:
        same(driver.records[one.id], naive(one, driver.scheduler.config, driver.device.eos_every))


def close(driver: Driver, *names: str) -> None:
    for name in names:
        driver.scheduler.abort(name)
        driver.check()
    driver.idle()


def whole(driver: Driver, name: str) -> list[int]:
    return [*driver.requests[name].prompt, *driver.records[name].tokens]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chain_of_segments_computes_only_what_is_new(depth: int) -> None:
    driver = Driver(depth=depth)
    run(driver, kept("a0", ids(9)))
    text = whole(driver, "a0")
    for at in range(1, 6):
        added = ids(at, at)
        run(driver, kept(f"a{at}", [*text, *added], extends=f"a{at - 1}"))
        assert driver.records[f"a{at}"].cached == len(text) - 1
        text = whole(driver, f"a{at}")
    assert driver.scheduler.stats().running == 0
    close(driver, "a5")


def test_what_a_stop_string_cuts_is_written_over() -> None:
    """The caller keeps the first tokens of an output and goes on with others."""
    driver = Driver(replace(SMALL, block_size=8))
    run(driver, kept("a", ids(17), 7))
    text = whole(driver, "a")[:-5]
    run(driver, kept("b", [*text, *ids(6, 1)], extends="a"))
    assert driver.records["b"].cached == len(text)
    close(driver, "b")


def test_finished_by_the_caller_it_is_open_too() -> None:
    driver = Driver()
    driver.add(kept("a", ids(9), 20))
    for _ in range(6):
        driver.step()
    assert driver.scheduler.finish("a")
    seen = whole(driver, "a")
    run(driver, kept("b", [*seen[:-1], *ids(3, 1)], extends="a"))
    assert driver.records["b"].cached >= len(seen) - SMALL.block_size
    close(driver, "b")


def test_a_cut_within_shared_blocks_is_an_ordinary_request() -> None:
    driver = Driver()
    run(driver, kept("a", ids(17), 12))
    run(driver, kept("b", [*ids(17), 7, 8, 9], extends="a"))
    assert driver.records["b"].cached == 17
    close(driver, "b")


@pytest.mark.parametrize("cannot", ["written over", "salt", "blocks"])
def test_where_too_many_wait_only_one_that_goes_on_at_once_is_accepted(cannot: str) -> None:
    """One that would have to be queued is refused without an effect: what it extends stays open."""
    driver = Driver(replace(SMALL, max_waiting=1, num_blocks=20))
    run(driver, kept("a", ids(17), 12))
    run(driver, kept("o", ids(24, 4)))
    text = whole(driver, "a")
    other = {
        "written over": kept("b", [*ids(17), 7, 8, 9], extends="a"),
        "salt": kept("b", [*text, 5], extends="a", salt="x"),
        "blocks": kept("b", [*text, *ids(40, 1)], extends="a"),
    }[cannot]
    driver.add(request("w", ids(9, 3)))
    with pytest.raises(Overloaded, match=r"1 request waiting already, and max_waiting is 1"):
        driver.scheduler.add(other)
    driver.check()
    run(driver, kept("c", [*text, 7, 8], extends="a"))
    assert driver.records["c"].cached == len(text) - 1, "it takes no place in the queue"
    close(driver, "c", "o")


@pytest.mark.parametrize(("open_one", "prompt"), [("gone", ids(9)), ("a", ids(9, 5))])
def test_what_is_not_open_or_other_is_an_ordinary_request(open_one: str, prompt: list[int]) -> None:
    driver = Driver()
    run(driver, kept("a", ids(9)))
    run(driver, kept("b", prompt, extends=open_one))
    close(driver, "a", "b")


def test_another_salt_shares_nothing() -> None:
    driver = Driver()
    run(driver, kept("a", ids(9)))
    run(driver, kept("b", [*whole(driver, "a"), 5], extends="a", salt="x"))
    assert driver.records["b"].cached == 0
    close(driver, "b")


def test_parameters_are_the_new_ones() -> None:
    """Penalties read the whole history, also what was cached when the slot was first taken."""
    driver = Driver()
    run(driver, request("w", ids(12)))
    run(driver, kept("a", ids(12)))
    run(driver, kept("b", [*whole(driver, "a"), 3], extends="a", repetition_penalty=1.5, seed=9, logprobs=2))
    scored = {"prompt_logprobs": 1, "prompt_logprobs_start": len(whole(driver, "b")) + 1}
    run(driver, kept("c", [*whole(driver, "b"), 4, 5, 6], 0, extends="b", **scored))
    close(driver, "c")


def test_branches_share_a_parked_prefix() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=64))
    run(driver, kept("a", ids(14), 5))
    driver.scheduler.park("a")
    driver.check()
    text, before = whole(driver, "a"), driver.device.computed
    branches = [kept(f"b{at}", [*text, at, at + 1]) for at in range(2, 7)]
    run(driver, *branches)
    # Each branch computes at most what is behind the last full block of the text, its own tokens, and its output.
    assert driver.device.computed - before <= len(branches) * (len(text) % SMALL.block_size + 2 + 3)
    assert driver.records["b2"].cached == len(text) - 1
    close(driver, "a", *(one.id for one in branches))


def test_a_pin_keeps_its_prefix_until_memory_is_short() -> None:
    config = replace(SMALL, num_blocks=13, max_num_batched_tokens=64)
    driver = Driver(config)
    run(driver, kept("a", ids(14), 3))
    driver.scheduler.park("a")
    for at in range(4):
        run(driver, request(f"x{at}", ids(20, at + 1), 3))
    run(driver, request("b", whole(driver, "a"), 3))
    assert driver.records["b"].cached == 16, "others have evicted all but the pin"
    run(driver, request("y", ids(40, 9), 6))
    driver.idle()
    close(driver, "a")


def test_open_sequences_never_block_others() -> None:
    driver = Driver(replace(SMALL, num_blocks=17, max_num_seqs=3))
    run(driver, *(kept(f"a{at}", ids(9, at)) for at in range(3)))
    assert driver.scheduler.stats().blocks_held
    run(driver, request("slot", ids(5, 7)))
    run(driver, request("blocks", ids(50, 8), 10))
    driver.idle()
    run(driver, kept("b", [*whole(driver, "a0"), 4], extends="a0"))
    close(driver, "b")


def test_growth_closes_what_is_open_before_it_preempts() -> None:
    driver = Driver(replace(SMALL, num_blocks=9))
    run(driver, kept("a", ids(9)))
    run(driver, request("b", ids(9, 1), 20))
    assert driver.scheduler.stats().preemptions == 0
    driver.idle()


def test_leases_end() -> None:
    driver = Driver()
    run(driver, kept("a", ids(9)), kept("p", ids(9, 1)))
    driver.scheduler.park("p")
    driver.now += LEASE + 1
    run(driver, request("b", ids(5, 2)))
    driver.idle()


@pytest.mark.parametrize("parked", [False, True])
def test_a_failed_step_and_a_reset_close_all(parked: bool) -> None:
    driver = Driver()
    run(driver, kept("a", ids(9)))
    if parked:
        driver.scheduler.park("a")
    driver.add(request("b", ids(9, 1), 6))
    driver.step()
    driver.fail("lost")
    driver.run()
    run(driver, kept("c", whole(driver, "a"), extends="a"))
    if parked:
        driver.scheduler.park("c")
    driver.scheduler.reset_cache()
    driver.idle()


def test_an_aborted_request_is_not_kept() -> None:
    driver = Driver()
    driver.add(kept("a", ids(9), 20))
    for _ in range(4):
        driver.step()
    driver.scheduler.abort("a")
    driver.run()
    assert not driver.scheduler.abort("a")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_among_requests_under_pressure(seed: int) -> None:
    """Chains with cuts, forks and parks beside ordinary requests: every answer is that of the request alone."""
    rng = random.Random(seed)
    config = replace(SMALL, num_blocks=rng.choice([14, 24, 60]), max_num_seqs=4, max_num_batched_tokens=16)
    driver = Driver(config, depth=2, eos_every=6)
    open_ones: list[str] = []
    for at in range(60):
        if rng.random() < 0.5 and open_ones:
            name = rng.choice(open_ones)
            if rng.random() < 0.3:
                driver.scheduler.park(name)
            text = whole(driver, name)
            cut = rng.choice([len(text), len(text), rng.randrange(1, len(text) + 1)])
            prompt, extends = [*text[:cut], *ids(rng.randrange(0, 5), at)][:30], name
            if rng.random() < 0.5:
                open_ones.remove(name)
        else:
            prompt, extends = ids(rng.randrange(1, 20), rng.randrange(3)), ""
        one = kept(f"r{at}", prompt, rng.randrange(0, 9), extends, repetition_penalty=rng.choice([1.0, 1.2]), seed=at)
        one = replace(one, keep=rng.random() < 0.7)
        driver.add(one)
        for _ in range(rng.randrange(0, 14)):
            driver.step()
        if rng.random() < 0.05 and driver.in_flight:
            driver.fail("lost")
        open_ones += [one.id] if driver.records[one.id].reason in ("stop", "length") and one.keep else []
    while driver.scheduler.has_work():
        driver.step()
    for name, record in driver.records.items():
        same(record, naive(driver.requests[name], config, 6))
    close(driver, *driver.requests)
