"""Ends that come from outside: aborts, stop strings, a failing device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, naive, request, same

CONFIG = replace(SMALL, max_num_seqs=2, max_num_batched_tokens=8)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("moment", range(14))
@pytest.mark.parametrize("how", ["abort", "finish"])
def test_at_every_moment(depth: int, moment: int, how: str) -> None:
    """Waiting, in each chunk of the prompt, in each token of the answer, and after its end."""
    driver = Driver(CONFIG, depth)
    driver.add(request("x", range(30, 54), 8), request("y", range(20, 30), 12))
    for _ in range(moment):
        driver.step()
    running = driver.records["x"].reason is None
    assert getattr(driver.scheduler, how)("x") == running
    driver.check()
    if running and how == "finish":
        driver.records["x"].reason = "stopped"
    before = list(driver.records["x"].tokens)
    records = driver.run()
    assert records["x"].tokens == before
    assert records["x"].reason == {"abort": "abort", "finish": "stopped"}[how] if running else "length"
    same(records["y"], naive(driver.requests["y"]))


def test_blocks_are_free_at_once_and_a_short_request_starts_within_a_step() -> None:
    driver = Driver(replace(CONFIG, prefix_caching=False))
    driver.add(request("long", range(2, 12), 60), *(request(f"w{i}", range(2, 50), 40, arrival=1.0) for i in range(50)))
    for _ in range(3):
        driver.step()
    assert driver.scheduler.stats().running == 2
    short = request("short", [5, 6], 1, arrival=2.0)
    driver.add(short)
    for id in ["long", *(f"w{i}" for i in range(50))]:
        assert driver.scheduler.abort(id)
    stats = driver.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_held) == (0, 1, 0)
    plan = driver.schedule()
    assert plan is not None
    assert plan.request_ids == ("short",)
    records = driver.run()
    same(records["short"], naive(short))
    assert all(record.reason == "abort" for id, record in records.items() if id != "short")


def test_ids_are_exact() -> None:
    driver = Driver()
    driver.add(*(request(f"req-{i}", [i + 2], 4) for i in range(12)))
    driver.step()
    assert driver.scheduler.abort("req-1")
    assert not driver.scheduler.abort("req-1")
    assert not driver.scheduler.abort("req")
    records = driver.run()
    assert [id for id, record in records.items() if record.reason == "abort"] == ["req-1"]


def test_one_delta_reports_it() -> None:
    driver = Driver()
    driver.add(request("a", range(2, 12), 9), request("b", [3], 9))
    driver.step()
    driver.scheduler.abort("a")
    deltas = driver.commit()
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("a", "abort"), ("b", None)]
    driver.scheduler.abort("b")
    assert [(d.request_id, d.finish_reason) for d in driver.take(driver.scheduler.drain())] == [("b", "abort")]
    assert driver.scheduler.drain() == []


def test_an_id_may_be_used_again() -> None:
    driver = Driver()
    driver.add(request("a", range(2, 12), 9))
    driver.step()
    driver.scheduler.finish("a")
    driver.add(request("a", range(20, 31), 4))
    same(driver.run()["a"], naive(request("a", range(20, 31), 4)))


def test_what_an_aborted_prompt_computed_serves_the_next() -> None:
    driver = Driver(CONFIG)
    driver.add(request("a", range(2, 50), 9))
    for _ in range(4):
        driver.step()
    driver.scheduler.abort("a")
    driver.add(request("b", range(2, 50), 3))
    records = driver.run()
    assert records["b"].cached == 32
    same(records["b"], naive(driver.requests["b"]))


def spoil(driver: Driver, message: str = "lost") -> list[str]:
    """The oldest step under way fails: it and all after it have written garbage. Returns the ids that end."""
    plan, _ = driver.in_flight.popleft()
    for one in (plan, *(later for later, _ in driver.in_flight)):
        driver.device.kv.reshape(-1)[one.slot_mapping] = -(2**50)
    return [delta.request_id for delta in driver.take(driver.scheduler.fail(plan, message))]


def test_a_failed_step_ends_its_sequences_and_leaves_nothing_behind() -> None:
    driver = Driver(CONFIG)
    driver.add(
        request("a", range(2, 22), 9), request("b", range(2, 22), 9, arrival=1.0), request("c", [9], 3, arrival=2.0)
    )
    driver.schedule()
    assert spoil(driver, "device lost") == ["a"]
    assert (driver.records["a"].reason, driver.records["a"].error) == ("error", "device lost")
    stats = driver.scheduler.stats()
    assert (stats.running, stats.blocks_cached, stats.blocks_held) == (0, 0, 0)
    records = driver.run()
    assert records["b"].cached == 0, "what the failed step was to fill is not found"
    for id in "bc":
        same(records[id], naive(driver.requests[id]))


def test_those_who_build_on_a_failed_step_start_over() -> None:
    """b shares blocks that a's step fills, in a later step that is under way when the first one fails."""
    driver = Driver(replace(SMALL, max_num_batched_tokens=20))
    driver.add(request("old", range(40, 60), 2))
    driver.run()
    driver.add(request("a", range(2, 22), 9))
    driver.schedule()
    driver.add(
        request("b", [*range(2, 18), 50, 51], 9, prompt_logprobs=None), request("s", range(3, 9), 2, prompt_logprobs=1)
    )
    plan = driver.schedule()
    assert plan is not None
    assert set(plan.request_ids) == {"a", "b", "s"}
    assert spoil(driver) == ["a"]
    assert driver.commit() == [], "the later step brings nothing any more"
    driver.add(request("again", range(40, 60), 2, arrival=9.0))
    records = driver.run()
    assert records["again"].cached == 19, "older prefixes stay"
    for id in ("b", "s", "again"):
        same(records[id], naive(driver.requests[id]))


def test_a_failure_in_mid_answer_keeps_what_was_committed() -> None:
    driver = Driver()
    driver.add(request("a", range(2, 12), 30))
    for _ in range(10):
        driver.step()
    tokens = list(driver.records["a"].tokens)
    assert spoil(driver) == ["a"]
    assert driver.records["a"].tokens == tokens
    driver.run()


def test_a_copy_of_what_a_failed_step_was_to_fill_is_not_kept() -> None:
    """b copies the start of a block that a's step under way fills, and is aborted before that step fails."""
    driver = Driver(CONFIG)
    driver.add(request("a", range(2, 22), 9))
    driver.step()
    driver.step()
    driver.add(request("b", [*range(2, 12), 50, 51], 9, priority=-1))
    plan = driver.schedule()
    assert plan is not None
    assert len(plan.copies) == 1
    driver.scheduler.abort("b")
    assert "a" in spoil(driver)
    while driver.in_flight:
        driver.commit()
    driver.add(request("c", [*range(2, 12), 60], 3))
    records = driver.run()
    assert records["c"].cached == 8
    same(records["c"], naive(driver.requests["c"]))


def test_a_step_that_cannot_be_launched_fails_before_the_one_under_way() -> None:
    driver = Driver(replace(SMALL, max_num_batched_tokens=20))
    driver.add(request("last", range(30, 40), 2), request("a", range(2, 12), 9))
    driver.step()
    driver.step()
    plan = driver.scheduler.schedule(driver.now)
    assert plan is not None
    assert plan.request_ids == ("a",)
    driver.take(driver.scheduler.fail(plan, "no memory"))
    assert driver.records["a"].reason == "error"
    assert len(driver.records["last"].tokens) == 1
    records = driver.run()
    same(records["last"], naive(driver.requests["last"]))


def test_only_a_plan_in_flight_can_fail() -> None:
    driver = Driver()
    driver.add(request("a", range(2, 12), 9))
    driver.schedule()
    plan = driver.in_flight[0][0]
    driver.commit()
    with pytest.raises(ValueError, match="not in deque"):
        driver.scheduler.fail(plan, "lost")


def test_a_copy_that_a_failed_step_was_to_make_is_not_found_again() -> None:
    """The copied start of a block goes back to the tree with its aborted sequence, whose step then fails: nothing was
    copied."""
    driver = Driver(replace(SMALL, num_blocks=4, max_num_batched_tokens=1))
    driver.add(request("first", range(2, 8), 1))
    driver.run()
    driver.add(request("second", range(2, 11), 1))
    plan = driver.schedule()
    assert plan is not None
    assert plan.positions.tolist() == [6], "a whole block is shared and the start of another copied"
    assert len(plan.copies) == 1
    assert driver.scheduler.abort("second")
    driver.scheduler.fail(plan, "the device failed")
    driver.scheduler.check()
    driver.scheduler.add(request("third", range(2, 11), 1))
    plan = driver.scheduler.schedule(0.0)
    assert plan is not None
    assert plan.positions.tolist() == [4]
