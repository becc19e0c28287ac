"""Who goes next: priority, age, cached prefix, and that everybody does in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, request

from headrace.core.sequence import AGEING, Sequence
from headrace.core.waiting_queue import AHEAD, PATIENCE, WINDOW, WaitingQueue

ONE = replace(SMALL, max_num_seqs=1)


def order(driver: Driver) -> list[str]:
    """Ids in the order of their first schedule."""
    records = driver.run(limit=50_000)
    return sorted(records, key=lambda id: records[id].first_scheduled or 0.0)


def test_first_come_first_served() -> None:
    driver = Driver(ONE)
    driver.add(*(request(f"r{i}", [i + 2], 2, arrival=float(i)) for i in range(6)))
    assert order(driver) == [f"r{i}" for i in range(6)]


def test_a_lower_priority_number_goes_first() -> None:
    driver = Driver(ONE)
    for i, priority in enumerate((2, 0, 1, -3, 0)):
        driver.add(request(f"r{i}", [i + 2], 2, arrival=float(i), priority=priority))
    assert order(driver) == ["r3", "r1", "r4", "r2", "r0"]


def test_age_makes_up_for_priority() -> None:
    driver = Driver(ONE)
    driver.add(request("new", [3], 2, arrival=AGEING + 1, priority=0), request("old", [4], 2, arrival=0.0, priority=1))
    assert order(driver) == ["old", "new"]


def test_the_longest_cached_prefix_goes_first_among_equals() -> None:
    driver = Driver(ONE)
    stem = list(range(2, 26))
    driver.add(request("warm", stem, 1))
    driver.run()
    driver.add(
        request("cold", range(30, 50), 2, arrival=1.0),
        request("part", [*stem[:9], 60], 2, arrival=2.0),
        request("full", [*stem, 60], 2, arrival=3.0),
        request("urgent", [5], 2, arrival=4.0, priority=-1),
    )
    assert order(driver) == ["warm", "urgent", "full", "part", "cold"]


def test_turns_order_what_came_at_the_same_moment_and_nothing_else() -> None:
    driver = Driver(ONE)
    driver.add(
        request("first", [3], 2, arrival=0.0),
        replace(request("third", [4], 2, arrival=1.0), turn=(-1,)),
        replace(request("second", [5], 2, arrival=1.0), turn=(-9, 4)),
        replace(request("fourth", [6], 2, arrival=2.0), turn=(-100,)),
        replace(request("zeroth", [7], 2, arrival=2.0, priority=-1), turn=(5,)),
    )
    assert order(driver) == ["zeroth", "first", "second", "third", "fourth"]


def test_a_cached_prefix_overtakes_within_a_turn_but_not_across_turns() -> None:
    driver = Driver(ONE)
    stem = list(range(2, 26))
    driver.add(request("warm", stem, 1))
    driver.run()
    driver.add(
        replace(request("urgent", range(30, 50), 2, arrival=1.0), turn=(-9, 1)),
        replace(request("cold", range(30, 40), 2, arrival=1.0), turn=(-3, 1)),
        replace(request("hot", [*stem, 60], 2, arrival=1.0), turn=(-3, 2)),
    )
    assert order(driver) == ["warm", "urgent", "hot", "cold"]


def test_no_request_starves_behind_a_popular_prefix() -> None:
    """A request without a cached prefix, and a stream of requests with one that never ends while it waits."""
    driver = Driver(ONE)
    stem = list(range(2, 26))
    driver.add(request("warm", stem, 1))
    driver.run()
    driver.add(request("cold", range(30, 50), 2, arrival=0.0))
    for i in range(PATIENCE + 5):
        driver.add(request(f"hot{i}", [*stem, 60], 1, arrival=1.0 + i))
    ids = order(driver)
    assert PATIENCE - 1 <= ids.index("cold") - 1 <= PATIENCE


def test_no_request_starves_behind_better_priorities() -> None:
    driver = Driver(ONE)
    driver.add(request("low", [3], 1, arrival=0.0, priority=2))
    count = 0
    while driver.records["low"].reason is None:
        count += 1
        assert count < 100
        driver.add(request(f"high{count}", [4], 1, arrival=driver.now))
        driver.step()
    assert driver.now > AGEING


def test_a_large_request_gets_its_turn_among_small_ones() -> None:
    driver = Driver(replace(SMALL, num_blocks=17, max_num_seqs=4))
    for i in range(3):
        driver.add(request(f"first{i}", range(2, 10), 12, arrival=0.0, salt=str(i)))
    driver.step()
    driver.add(request("large", range(2, 60), 3, arrival=1.0))
    count = 0
    while driver.records["large"].reason is None:
        count += 1
        assert count < 200
        driver.add(request(f"small{count}", [5, 6], 8, arrival=1.0 + count, salt=str(count)))
        driver.step()
    driver.run()


@pytest.mark.parametrize("place", range(5))
def test_the_queue_removes_the_one_it_is_asked_to(place: int) -> None:
    queue = WaitingQueue()
    seqs = [Sequence.of(request(str(i), [2], arrival=float(i // 2)), i, 64) for i in range(5)]
    for seq in reversed(seqs):
        queue.push(seq)
    queue.remove(seqs[place])
    assert list(queue) == [seq for i, seq in enumerate(seqs) if i != place]
    assert len(queue) == 4


def test_the_queue_skips_who_may_not_run_yet() -> None:
    queue = WaitingQueue()
    held, free = (Sequence.of(request(id, [2]), i, 64) for i, id in enumerate("ab"))
    held.hold = 7
    queue.push(held)
    assert queue.pick(6, lambda _: 0) is None
    queue.push(free)
    assert queue.pick(6, lambda _: 0) is free
    assert queue.pick(7, lambda _: 0) is held


@pytest.mark.parametrize("count", [WINDOW, AHEAD - 1])
def test_who_may_not_run_yet_keeps_nobody_else_from_running(count: int) -> None:
    queue = WaitingQueue()
    seqs = [Sequence.of(request(f"r{i}", [2], arrival=float(i)), i, 64) for i in range(count + 2)]
    for seq in seqs:
        seq.hold = 7 if seq in seqs[:count] else -1
        queue.push(seq)
    assert queue.pick(6, lambda seq: seq.request.arrival) is (seqs[-1] if count + 2 <= AHEAD else seqs[count])
    # Nobody has overtaken those: they are the first again.
    assert [seq.passed for seq in seqs[:count]] == [0] * count
    assert queue.pick(7, lambda _: 0) is seqs[0]


def test_the_queue_looks_at_so_many_and_no_more() -> None:
    queue = WaitingQueue()
    for i in range(AHEAD + 1):
        seq = Sequence.of(request(f"r{i}", [2], arrival=float(i)), i, 64)
        seq.hold = 7 if i < AHEAD else -1
        queue.push(seq)
    assert queue.pick(6, lambda _: 0) is None


def test_a_prompt_behind_many_that_wait_for_scores_begins_at_once() -> None:
    """Many requests want the scores of one long prompt, which the first of them computes."""
    driver = Driver(replace(SMALL, max_num_seqs=4, max_num_batched_tokens=110))
    prompt = [2 + at % 59 for at in range(100)]
    driver.add(*(request(f"s{i}", prompt, 1, arrival=float(i), prompt_logprobs=0) for i in range(WINDOW + 2)))
    driver.add(request("other", [62, 63], 2, arrival=30.0))
    records = driver.run()
    assert records["other"].first_scheduled == records["s0"].first_scheduled
    assert all(records[f"s{i}"].reason == "length" for i in range(WINDOW + 2))
