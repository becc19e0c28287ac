"""Scores of prompts that stand beside cached blocks: they are taken from there, never wrong, and in bounded memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.core.block_scores import BlockScores
from headrace.types import Request, TokenLogprobs

BLOCK = SMALL.block_size


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, 60) for _ in range(count)]


def scored(id: str, prompt: list[int], count: int = 0, output: int = 0, **more: object) -> Request:
    return request(id, prompt, output, prompt_logprobs=count, **more)


def run(driver: Driver, *requests: Request) -> int:
    """Run requests to their end and check them. Returns the number of tokens that the device has computed."""
    before = driver.device.computed
    driver.add(*requests)
    while driver.scheduler.has_work():
        driver.step()
    for one in requests:
        same(driver.records[one.id], naive(one, driver.scheduler.config))
    return driver.device.computed - before


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 40, 43])
@pytest.mark.parametrize("output", [0, 3])
@pytest.mark.parametrize("budget", [7, 64])
def test_a_scored_prompt_computes_its_last_token_again(length: int, output: int, budget: int) -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=budget))
    prompt = ids(length)
    cold = run(driver, scored("a", prompt, 2, output))
    assert cold == length + max(output - 1, 0)
    assert run(driver, scored("b", prompt, 2, output)) == 1 + max(output - 1, 0)
    assert driver.records["b"].cached == length - 1


@pytest.mark.parametrize("common", [1, 3, 4, 5, 8, 20, 23])
def test_where_prompts_part_the_row_before_is_computed(common: int) -> None:
    driver = Driver()
    first = ids(24)
    other = [*first[:common], *ids(24 - common, 1)]
    other[common] = 61
    run(driver, scored("a", first))
    assert run(driver, scored("b", other)) == 24 - common + 1
    assert driver.records["b"].cached == common - 1
    assert run(driver, scored("c", other)) == 1


def test_more_alternatives_than_are_stored_are_computed_and_stored() -> None:
    driver = Driver()
    prompt = ids(21)
    assert run(driver, scored("a", prompt, 1)) == 21
    assert run(driver, scored("b", prompt, 3)) == 21
    for count in (0, 1, 2, 3):
        assert run(driver, scored(f"c{count}", prompt, count)) == 1
    assert run(driver, scored("d", prompt, 4)) == 21


def test_scores_from_a_start_serve_those_that_need_no_more() -> None:
    driver = Driver()
    prompt = ids(30)
    run(driver, scored("a", prompt, prompt_logprobs_start=13))
    assert run(driver, scored("b", prompt, prompt_logprobs_start=14)) == 1
    assert run(driver, scored("c", prompt, prompt_logprobs_start=13)) == 1
    assert run(driver, scored("d", prompt, prompt_logprobs_start=12)) == 30 - 11
    assert run(driver, scored("e", prompt)) == 30
    assert run(driver, scored("f", prompt)) == 1


def test_blocks_that_another_has_computed_get_the_scores() -> None:
    """Without scores the cache serves only those that ask for none. The next one brings them, for the last block,
    too."""
    driver = Driver()
    prompt = ids(22)
    run(driver, request("plain", prompt, 3))
    assert run(driver, scored("a", prompt)) == 22
    assert run(driver, scored("b", prompt)) == 1


def test_a_last_block_that_is_filled_by_another_keeps_the_scores() -> None:
    driver = Driver()
    prompt = ids(22)
    run(driver, scored("a", prompt))
    run(driver, request("longer", [*prompt, *ids(7, 5)], 3))
    assert run(driver, scored("b", prompt)) == 1


def test_echo_with_an_output_stores_the_block_in_which_the_prompt_ends() -> None:
    driver = Driver()
    prompt = ids(22)
    run(driver, scored("a", prompt, 1, 12, logprobs=1))
    assert run(driver, scored("b", prompt, 1)) == 1
    answer = [*prompt, *driver.records["a"].tokens]
    # What was generated has no scores of a prompt.
    assert run(driver, scored("c", answer, 1)) == len(answer) - 21
    assert run(driver, scored("d", answer, 1)) == 1


def test_salts_and_adapters_share_no_scores() -> None:
    driver = Driver()
    prompt = ids(20)
    run(driver, scored("a", prompt))
    assert run(driver, scored("b", prompt, salt="x")) == 20
    assert run(driver, replace(scored("c", prompt), adapter="tuned")) == 20
    assert run(driver, scored("d", prompt, salt="x")) == 1


def test_scores_leave_with_their_blocks() -> None:
    driver = Driver(replace(SMALL, num_blocks=13))
    prompt = ids(40)
    scores = driver.scheduler.tree.scores
    run(driver, scored("a", prompt))
    assert len(scores.blocks) == 10
    run(driver, request("large", ids(44, 3), 2))
    assert len(scores.blocks) <= 1
    driver.scheduler.reset_cache()
    assert (bool(scores), scores.used) == (False, 0)
    assert run(driver, scored("b", prompt)) == 40


def test_what_overtakes_takes_over_the_scores_that_another_has_brought() -> None:
    """The second begins while the first is computed in chunks, and goes on behind it."""
    driver = Driver(replace(SMALL, max_num_batched_tokens=8, max_num_seqs=4), depth=1)
    prompt = ids(60)
    driver.add(scored("a", prompt))
    for _ in range(3):
        driver.step()
    driver.add(scored("b", prompt, 0, 0, priority=-1))
    before = driver.device.computed
    driver.run()
    for name in "ab":
        same(driver.records[name], naive(driver.requests[name]))
    assert driver.records["b"].cached >= 16
    assert driver.device.computed - before < 60


def test_a_failed_step_stores_nothing() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=8), depth=2)
    prompt = ids(60)
    driver.add(scored("a", prompt), scored("b", prompt, arrival=1.0))
    for _ in range(4):
        driver.step()
    driver.fail("the device is tired")
    driver.run()
    for name in "ab":
        same(driver.records[name], naive(driver.requests[name]))
    assert run(driver, scored("c", prompt)) <= 60
    assert run(driver, scored("d", prompt)) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("budget", [24, 64, 128])
def test_choices_that_are_scored_at_once_compute_their_text_once(depth: int, budget: int) -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=budget), depth=depth)
    text = ids(100)
    choices = [scored(f"c{at}", [*text, at, *ids(5, at)], 1, arrival=float(at)) for at in range(2, 6)]
    more = run(driver, *choices) - (106 + 3 * 7)
    assert more == 0 if budget == 128 else 0 <= more < 64, "few scores are not waited for"


def test_few_scores_are_not_waited_for() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=128))
    text = ids(60)
    run(driver, *(scored(f"c{at}", [*text, at]) for at in range(2, 4)))
    assert driver.steps == 1


def test_one_that_waits_for_scores_goes_on_if_they_do_not_come() -> None:
    """The one that computes them is gone, or the step fails; meanwhile others run."""
    for lost in ("abort", "fail", "preempt"):
        driver = Driver(replace(SMALL, max_num_batched_tokens=32), depth=2)
        text = ids(100)
        driver.add(scored("a", text), scored("b", [*text, 3], arrival=1.0), request("c", ids(5, 1), 3, 2.0))
        driver.step()
        driver.step()
        if lost == "abort":
            driver.scheduler.abort("a")
        elif lost == "fail":
            driver.fail("the device is tired")
        else:
            driver.scheduler._preempt(driver.scheduler._requests["a"])
        driver.run()
        for name in "abc":
            same(driver.records[name], naive(driver.requests[name]))
        assert driver.records["b"].reason == "length"


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order(seed: int, depth: int) -> None:
    """Scored and plain requests over few stems: preemptions, aborts, failed steps, evictions, a small memory."""
    rng = random.Random(seed)
    config = replace(SMALL, num_blocks=24, max_num_seqs=4, max_num_batched_tokens=24)
    driver = Driver(config, depth=depth)
    driver.scheduler.tree.scores = BlockScores(BLOCK, 4000)
    stems = [ids(30, at) for at in range(3)]
    ones = []
    for at in range(120):
        stem = rng.choice(stems)
        prompt = stem[: rng.randrange(1, 30)] + [rng.randrange(2, 5) for _ in range(rng.randrange(3))]
        count = rng.choice([None, 0, 0, 1, 3])
        start = 0 if count is None else rng.choice([0, 0, 0, rng.randrange(len(prompt))])
        more = {"prompt_logprobs": count, "prompt_logprobs_start": start, "logprobs": rng.choice([None, 1])}
        salt = rng.choice(["", "", "x"])
        ones.append(request(f"r{at}", prompt, rng.randrange(0, 25), float(at), rng.choice([0, 0, -1]), salt, **more))
        driver.add(ones[-1])
        for _ in range(rng.randrange(4)):
            driver.step()
        if rng.random() < 0.05 and driver.in_flight and driver.in_flight[0][1] is not None:
            driver.fail("the device is tired")
        if rng.random() < 0.1:
            driver.scheduler.abort(rng.choice(ones).id)
            driver.take(driver.scheduler.drain())
        assert driver.scheduler.tree.scores.used <= 4000
    driver.run()
    for one in ones:
        same(driver.records[one.id], naive(one, config))


def entry(token: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(token, -token / 8, token + 1, tuple((token + at, -at / 4) for at in range(count)))


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    scores = BlockScores(4, 2000)
    for block in range(1, 100):
        for offset in range(4):
            scores.keep(block, offset, entry(offset, 2))
        if scores.reach(1, 0, 4, 2) == 4:
            scores.take(1, 0, 0, 0)
        assert 0 < scores.used <= 2000
    assert scores.reach(1, 0, 4, 2) == 4, "it was used again and again"
    assert scores.reach(2, 0, 4, 0) == 0
    assert scores.reach(99, 0, 4, 2) == 4
    scores.drop(scores.blocks)
    assert scores.used == 0
    assert not scores


def test_entries_come_back_as_they_were() -> None:
    scores = BlockScores(4)
    for offset, count in ((1, 0), (2, 128)):
        scores.keep(7, offset, entry(3 * offset, count))
        assert scores.take(7, offset, 3 * offset, count) == entry(3 * offset, count)
    assert scores.take(7, 2, 6, 5) == entry(6, 5)
    assert [scores.reach(7, start, 4, 0) for start in range(4)] == [0, 3, 3, 3]
    assert scores.reach(7, 1, 3, 1) == 1
    scores.keep(7, 2, entry(6, 4))
    assert scores.reach(7, 2, 3, 128) == 3, "fewer alternatives replace nothing"
    scores.move(7, 8)
    assert (scores.reach(7, 1, 2, 0), scores.reach(8, 1, 2, 0)) == (1, 2)
    low = TokenLogprobs(1, float("-inf"), 2**31 - 1)
    scores.keep(8, 0, low)
    assert scores.take(8, 0, 1, 0) == low
