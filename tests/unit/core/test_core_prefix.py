"""The prefix cache: what is shared, what is copied, and that warm answers are the cold ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.types import Request

BLOCK = SMALL.block_size


def ids(length: int, seed: int = 7) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, 64) for _ in range(length)]


def warm(driver: Driver, *requests: Request) -> None:
    """Run one after another."""
    for one in requests:
        driver.add(one)
        driver.run()


@pytest.mark.parametrize("length", [k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)])
@pytest.mark.parametrize("output", [1, 2, 9])
def test_a_fully_cached_prompt_computes_one_token(length: int, output: int) -> None:
    driver = Driver()
    first, second = (request(id, ids(length), output, logprobs=2) for id in "ab")
    warm(driver, first)
    before = driver.device.computed
    warm(driver, second)
    for one in (first, second):
        same(driver.records[one.id], naive(one))
    assert driver.records["a"].cached == 0
    assert driver.records["b"].cached == length - 1
    assert driver.device.computed - before == output


def test_a_partly_matching_block_is_copied() -> None:
    driver = Driver()
    warm(driver, request("a", ids(12), 1))
    other = ids(12)
    other[10] = 63 - other[10]
    driver.add(request("b", other, 1))
    plan = driver.step()
    assert plan is not None
    assert plan.positions.tolist() == [10, 11]
    assert len(plan.copies) == 1
    source, target = plan.copies[0].tolist()
    assert target == plan.block_tables[0, 2] != source
    same(driver.run()["b"], naive(request("b", other, 1)))


def test_the_partly_filled_last_block_of_an_answer_is_found_again() -> None:
    driver = Driver()
    first = request("a", ids(10), 5)
    warm(driver, first)
    answer = driver.records["a"].tokens
    follow = request("b", [*ids(10), *answer, 40, 41], 5)
    warm(driver, follow)
    assert driver.records["b"].cached == 10 + 5 - 1, "the last token was never computed"
    same(driver.records["b"], naive(follow))


def test_of_several_partly_matching_blocks_the_best_is_copied() -> None:
    driver = Driver()
    stem = ids(4)
    for i, tail in enumerate(([9, 9, 9, 9], [9, 8, 8, 8], [9, 8, 7, 7], [10, 1, 1, 1], [3, 2, 2, 2])):
        warm(driver, request(f"r{i}", [*stem, *tail, 5], 1))
    warm(driver, request("x", [*stem, 9, 8, 7, 6, 5], 1))
    assert driver.records["x"].cached == 7


def test_one_step_computes_a_shared_prefix_once() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=64))
    stem = ids(21)
    requests = [request(f"r{i}", [*stem, 50 + i], 6) for i in range(5)]
    driver.add(*requests)
    plan = driver.step()
    assert plan is not None
    assert plan.num_seqs == 5
    assert plan.num_tokens == 22 + 4 * 2
    assert len(plan.copies) == 0, "a block that this very step fills cannot be a source"
    for one in requests:
        same(driver.run()[one.id], naive(one))


def test_a_shared_prefix_in_chunks_is_computed_once() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=16))
    stem = ids(64)
    requests = [request(f"r{i}", [*stem, 50 + i], 2, arrival=float(i), repetition_penalty=1.5) for i in range(3)]
    driver.add(requests[0])
    driver.step()
    driver.add(*requests[1:])
    for one in requests:
        same(driver.run()[one.id], naive(one))
    assert driver.device.computed <= 65 + 2 + 2 * (1 + 2)


def test_one_that_has_begun_takes_over_what_another_computes() -> None:
    """b is urgent and overtakes a in mid-prompt, after which a finds all of it in the tree."""
    driver = Driver(replace(SMALL, max_num_batched_tokens=16))
    stem = ids(64)
    a = request("a", [*stem, 50], 2, priority=1, repetition_penalty=1.5)
    b = request("b", [*stem, 51], 2, arrival=1.0)
    driver.add(a)
    driver.step()
    driver.add(b)
    plan = driver.step()
    assert plan is not None
    assert plan.request_ids == ("b",)
    for one in (a, b):
        same(driver.run()[one.id], naive(one))
    assert driver.records["b"].cached == 16
    assert driver.device.computed == 64 + 2 * (1 + 1)


def test_samples_of_one_prompt_share_it() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=64))
    requests = [request(f"r{i}", ids(17), 4, seed=i) for i in range(4)]
    driver.add(*requests)
    records = driver.run()
    for one in requests:
        same(records[one.id], naive(one))
    assert len({tuple(record.tokens) for record in records.values()}) == 4
    assert driver.device.computed == 17 + 3 + 4 * 3


def test_adapters_and_salts_share_nothing() -> None:
    driver = Driver()
    prompt = ids(20)
    spaces = [("", ""), ("", "a"), ("a", ""), ("a", "a"), ("a|", ""), ("", "|a")]
    for i, (adapter, salt) in enumerate(spaces):
        warm(driver, replace(request(f"r{i}", prompt, 3, salt=salt), adapter=adapter))
        assert driver.records[f"r{i}"].cached == 0
    warm(driver, replace(request("again", prompt, 3, salt="a"), adapter="a"))
    assert driver.records["again"].cached == 19


def test_two_conversations_in_turns() -> None:
    driver = Driver()
    talk = {"x": ids(9, 1), "y": ids(9, 2)}
    known = {"x": 0, "y": 0}
    for turn in range(4):
        for name in ("x", "y"):
            one = request(f"{name}{turn}", talk[name], 6)
            warm(driver, one)
            record = driver.records[one.id]
            same(record, naive(one))
            assert record.cached == known[name]
            known[name] = len(talk[name]) + 5
            talk[name] = [*talk[name], *record.tokens, *ids(5, turn)]


@pytest.mark.parametrize("warmth", ["cold", "same", "half", "plain"])
@pytest.mark.parametrize("budget", [16, 500])
def test_prompt_logprobs_are_complete_for_any_content_of_the_cache(warmth: str, budget: int) -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=budget))
    prompt = ids(64)
    scored = {"logprobs": 3, "prompt_logprobs": 3}
    if warmth == "same":
        warm(driver, request("w", prompt, 5, **scored))
    elif warmth == "half":
        warm(driver, request("w", [*prompt[:32], *ids(32, 9)], 5, **scored))
    elif warmth == "plain":
        warm(driver, request("w", prompt, 5))
    one = request("a", prompt, 5, **scored)
    warm(driver, one)
    record = driver.records["a"]
    same(record, naive(one))
    assert record.cached == {"cold": 0, "same": 63, "half": 31, "plain": 0}[warmth], "as far as it was scored before"
    assert record.prompt_logprobs is not None
    assert len(record.prompt_logprobs) == 64
    assert record.prompt_logprobs[0] is None
    warm(driver, request("b", prompt, 5))
    assert driver.records["b"].cached == 63, "what it computed serves others"


@pytest.mark.parametrize("budget", [16, 500])
@pytest.mark.parametrize("start", [1, 2, 30, 32, 33, 63])
def test_what_is_before_the_start_of_the_logprobs_comes_from_the_cache(start: int, budget: int) -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=budget))
    prompt = ids(64)
    warm(driver, request("w", prompt, 5))
    computed = driver.device.computed
    one = request("a", prompt, 0, prompt_logprobs=2, prompt_logprobs_start=start)
    warm(driver, one)
    record = driver.records["a"]
    same(record, naive(one))
    assert record.prompt_logprobs is not None
    assert [entry is None for entry in record.prompt_logprobs] == [True] * start + [False] * (64 - start)
    assert record.cached == start - 1
    assert driver.device.computed == computed + 64 - (start - 1)


def test_choices_behind_one_prefix_are_scored_in_one_step() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=64))
    prefix = ids(36)
    warm(driver, request("w", prefix, 1))
    steps = driver.steps
    scored = {"prompt_logprobs": 0, "prompt_logprobs_start": len(prefix)}
    choices = [request(f"c{at}", [*prefix, at, at + 1], 0, **scored) for at in range(2, 8)]
    driver.add(*choices)
    driver.run()
    assert driver.steps == steps + 1
    for one in choices:
        same(driver.records[one.id], naive(one))


def test_duplicates_are_replaced_by_the_trees_blocks() -> None:
    """Two prompts that become equal while they run hold their common blocks once."""
    driver = Driver(replace(SMALL, max_num_batched_tokens=64))
    prompt = ids(9)
    answer = naive(request("n", prompt, 20)).tokens
    driver.add(request("a", prompt, 20), request("b", [*prompt, *answer[:6]], 14, arrival=1.0))
    for _ in range(12):
        driver.step()
    stats = driver.scheduler.stats()
    tokens = 9 + 12
    assert stats.running == 2
    assert stats.blocks_held < 2 * tokens // BLOCK
    driver.run()


def test_reset_forgets_what_is_cached_and_what_is_running() -> None:
    driver = Driver()
    prompt = ids(20)
    warm(driver, request("a", prompt, 3))
    driver.add(request("b", prompt, 12))
    driver.step()
    driver.step()
    driver.scheduler.reset_cache()
    driver.check()
    assert driver.scheduler.stats().blocks_cached == 0
    driver.add(request("c", prompt, 3))
    records = driver.run()
    assert (records["b"].cached, records["c"].cached) == (19, 0)
    for id, output in (("b", 12), ("c", 3)):
        same(records[id], naive(request(id, prompt, output)))
    driver.scheduler.reset_cache()
    assert driver.scheduler.stats().blocks_free == SMALL.num_blocks - 1


def test_without_caching_nothing_stays() -> None:
    driver = Driver(replace(SMALL, prefix_caching=False))
    warm(driver, request("a", ids(20), 3), request("b", ids(20), 3))
    assert driver.records["b"].cached == 0
    assert driver.scheduler.stats().blocks_free == SMALL.num_blocks - 1


def test_penalties_see_tokens_that_came_from_the_cache() -> None:
    driver = Driver()
    warm(driver, request("a", ids(20), 3))
    driver.add(request("b", [*ids(20), 9], 3, frequency_penalty=0.5))
    plan = driver.step()
    assert plan is not None
    assert plan.history_positions.tolist() == list(range(20))
    assert plan.history_tokens.tolist() == ids(20)
    assert set(plan.history_slots.tolist()) == set(plan.slots.tolist())
    driver.add(request("c", [*ids(20), 8], 3))
    plan = driver.step()
    assert plan is not None
    assert len(plan.history_tokens) == 0, "nobody asks for c's"
    driver.run()


def test_the_least_recently_used_goes_first() -> None:
    driver = Driver(replace(SMALL, num_blocks=17))
    a, b, c = (ids(20, seed) for seed in (1, 2, 3))
    warm(driver, request("a", a, 1), request("b", b, 1), request("a2", a, 1), request("c", c, 1))
    warm(driver, request("d", ids(20, 4), 1))
    warm(driver, request("a3", a, 1), request("b2", b, 1))
    assert driver.records["a2"].cached == 19
    assert driver.records["a3"].cached > driver.records["b2"].cached
