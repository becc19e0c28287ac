"""Preemption: which sequence is preempted, and that the outputs don't change."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.types import Request


def crowd(count: int = 16, prompt: int = 64, output: int = 64) -> list[Request]:
    rng = random.Random(3)
    return [
        request(
            f"r{i}",
            [i + 2, *(rng.randrange(2, 64) for _ in range(prompt - 1))],
            output,
            arrival=float(i),
            seed=i,
            logprobs=1,
            prompt_logprobs=1 if i % 4 == 0 else None,
            repetition_penalty=1.3 if i % 2 else 1.0,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_a_small_pool_gives_the_same_answers(depth: int, caching: bool) -> None:
    config = replace(
        SMALL,
        num_blocks=41,
        block_size=16,
        max_num_seqs=16,
        max_num_batched_tokens=32,
        max_model_len=256,
        prefix_caching=caching,
    )
    driver = Driver(config, depth)
    requests = crowd()
    driver.add(*requests)
    records = driver.run()
    assert driver.scheduler.stats().preemptions > 0
    for one in requests:
        same(records[one.id], naive(one, config))
        assert records[one.id].cached == 0, "its own recomputation is no cache hit"
    assert driver.scheduler.stats().prompt_tokens == 16 * 64


TIGHT = replace(SMALL, num_blocks=13, max_num_seqs=3, max_num_batched_tokens=64)


def test_the_lowest_priority_gives_way() -> None:
    """Three of 3 + 1 blocks each, growing: the first that is missing is taken from b."""
    driver = Driver(TIGHT)
    for id, priority in (("a", 0), ("b", 5), ("c", 1)):
        driver.add(request(id, range(10, 20), 30, priority=priority, salt=id))
    ended: list[str] = []
    while driver.scheduler.stats().preemptions == 0:
        plan = driver.step()
    for _ in range(2):
        plan = driver.step()
    assert plan is not None
    assert "b" not in plan.request_ids
    assert {"a", "c"} <= set(plan.request_ids)
    driver.run(each=lambda: ended.extend(id for id, r in driver.records.items() if r.reason and id not in ended))
    assert ended[0] == "a"


def test_of_equals_the_latest_gives_way() -> None:
    driver = Driver(TIGHT)
    for at, id in ((2.0, "a"), (0.0, "b"), (1.0, "c")):
        driver.add(request(id, range(10, 20), 30, arrival=at, salt=id))
    while driver.scheduler.stats().preemptions == 0:
        driver.step()
    plan = driver.step()
    assert plan is not None
    assert set(plan.request_ids) == {"b", "c"}
    records = driver.run()
    for id in "abc":
        same(records[id], naive(request(id, range(10, 20), 30)))


def test_a_victim_waits_for_its_tokens_under_way() -> None:
    driver = Driver(TIGHT)
    for id in "ab":
        driver.add(request(id, range(10, 30), 25, salt=id))
    driver.schedule()
    while driver.scheduler.stats().preemptions == 0:
        if len(driver.in_flight) == 2:
            driver.commit()
        driver.schedule()
    known = len(driver.records["b"].tokens)
    driver.scheduler.finish("a")
    driver.records["a"].reason = "abort"
    while driver.in_flight:
        driver.commit()
    assert len(driver.records["b"].tokens) == known + 1, "the token under way is not lost"
    plan = driver.schedule()
    assert plan is not None
    assert plan.positions[-1] == 20 + known, "all that is known is computed, and not more"
    same(driver.run()["b"], naive(request("b", range(10, 30), 25)))


def test_one_alone_always_gets_through() -> None:
    config = replace(SMALL, num_blocks=9)
    driver = Driver(config)
    one = request("a", range(2, 20), 32 + 1 - 18)
    driver.add(one, *(request(f"r{i}", range(2, 30), 5, arrival=1.0 + i, salt=str(i)) for i in range(3)))
    for id, record in driver.run().items():
        same(record, naive(driver.requests[id], config))


def test_a_preempted_sequence_may_end_while_it_waits() -> None:
    """Its last token, or its stop token, was under way."""
    for output in range(5, 20):
        driver = Driver(TIGHT, eos_every=8)
        requests = [request(id, range(10, 21), output, salt=id, arrival=float(i)) for i, id in enumerate("abc")]
        driver.add(*requests)
        for one in requests:
            same(driver.run()[one.id], naive(one, TIGHT, 8))


@pytest.mark.parametrize(("length", "enters"), [(32, True), (33, False)])
def test_a_newcomer_leaves_a_block_for_each_that_runs(length: int, enters: bool) -> None:
    """12 blocks: 3 are a's, which will soon want a fourth; 8 may be taken."""
    driver = Driver(replace(TIGHT, max_num_batched_tokens=10))
    driver.add(request("a", range(10, 20), 5))
    driver.step()
    driver.add(request("b", range(20, 20 + length), 1))
    plan = driver.step()
    assert plan is not None
    assert ("b" in plan.request_ids) == enters
    driver.run()
    assert driver.scheduler.stats().preemptions == 0
