"""The look into the scheduler agrees with the core's own state, changes nothing, and has a bounded size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, request

from headrace.core import inspection
from headrace.core.inspection import CACHED, FIRST, FREE, OTHER, SHARED, SchedulerView


def check_counts(driver: Driver) -> SchedulerView:
    """The cells add up to the stats."""
    view, stats = driver.scheduler.view(), driver.scheduler.stats()
    counts = Counter(view.cells)
    assert counts[FREE] == stats.blocks_free
    assert counts[CACHED] == stats.blocks_cached
    assert sum(count for state, count in counts.items() if state >= SHARED) == stats.blocks_held
    assert (len(view.running), len(view.waiting)) == (stats.running, stats.waiting)
    return view


def test_an_idle_scheduler() -> None:
    view = check_counts(Driver())
    assert view.cells == [FREE] * 64
    assert (view.running, view.waiting, view.prefixes) == ([], [], [])
    assert (view.slots, view.blocks_per_cell, view.nodes_left) == (8, 1, False)


def test_sequences_with_their_places() -> None:
    driver = Driver(depth=1)
    driver.add(request("a", range(2, 22), 30, arrival=1.0), request("b", range(30, 40), 20, arrival=2.0))
    first = check_counts(driver)
    assert [one.id for one in first.waiting] == ["a", "b"]
    assert {one.state for one in first.waiting} == {"waiting"}
    for _ in range(4):
        driver.step()
    view = check_counts(driver)
    a, b = view.running
    assert (a.id, a.state, a.arrival) == ("a", "decode", 1.0)
    assert (a.prompt_tokens, a.max_output_tokens, a.cached_tokens) == (20, 30, 0)
    assert a.computed_tokens == 20 + a.output_tokens - 1
    assert Counter(view.cells)[FIRST] == a.blocks
    assert Counter(view.cells)[FIRST + 1] == b.blocks


def test_a_long_prompt_prefills() -> None:
    driver = Driver(depth=1)
    driver.add(request("a", range(2, 60), 4))
    driver.step()
    (one,) = check_counts(driver).running
    assert (one.state, one.computed_tokens, one.output_tokens) == ("prefill", 32, 0)


def test_shared_blocks_and_prefixes() -> None:
    driver = Driver(depth=1)
    common = list(range(2, 18))
    driver.add(request("a", [*common, 20, 21, 22, 23, 24], 10), request("b", [*common, 30, 31, 32, 33, 34], 10))
    for _ in range(4):
        driver.step()
    view = check_counts(driver)
    assert Counter(view.cells)[SHARED] == 4
    trunk, *branches = view.prefixes
    assert (trunk.parent, trunk.tokens, trunk.own_tokens, trunk.users, trunk.branches) == (-1, 16, 16, 2, 2)
    for branch in branches:
        assert branch.parent == 0
        assert branch.users == 1
        assert branch.tokens == 16 + branch.own_tokens
    while driver.scheduler.has_work():
        driver.step()
    view = check_counts(driver)
    assert not view.running
    assert view.prefixes[0].users == 0
    assert all(state in (FREE, CACHED) for state in view.cells)


def test_salts_are_not_shown() -> None:
    driver = Driver(depth=1)
    driver.add(request("a", range(2, 12), 4, salt="secret"))
    for _ in range(3):
        driver.step()
    view = driver.scheduler.view()
    assert view.prefixes[0].salted
    assert "secret" not in repr(view)


def test_no_tokens_are_shown() -> None:
    """Two prompts of the same lengths look the same."""
    looks = []
    for start in (2, 30):
        driver = Driver(depth=1)
        driver.add(request("a", range(start, start + 20), 4))
        driver.step()
        looks.append(driver.scheduler.view())
    assert looks[0] == looks[1]


def test_the_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_SEQUENCES", 2), ("MOST_CELLS", 20), ("MOST_PREFIXES", 3), ("MOST_NODES", 5)):
        monkeypatch.setattr(inspection, name, most)
    driver = Driver(replace(SMALL, max_num_batched_tokens=64), depth=1)
    driver.add(*(request(f"r{i}", range(2 + 5 * i, 10 + 5 * i), 30) for i in range(10)))
    for _ in range(4):
        driver.step()
    view = driver.scheduler.view()
    assert [one.id for one in view.running] == ["r0", "r1"]
    assert [one.id for one in view.waiting] == ["r8", "r9"]
    assert (view.blocks_per_cell, len(view.cells)) == (4, 16)
    assert set(view.cells) <= {FREE, OTHER, FIRST, FIRST + 1}
    assert OTHER in view.cells
    assert len(view.prefixes) == 3
    assert (view.nodes, view.nodes_left) == (5, True)


def test_a_look_changes_nothing() -> None:
    """The same requests give the same tokens, whether somebody looks after every step or not."""

    def run(looks: bool) -> list[list[int]]:
        driver = Driver(depth=2)
        driver.add(*(request(f"r{i}", range(2, 12 + 3 * i), 8) for i in range(6)))
        while driver.scheduler.has_work():
            driver.step()
            if looks:
                check_counts(driver)
        return [record.tokens for record in driver.records.values()]

    assert run(True) == run(False)


def test_open_sequences_and_pins() -> None:
    """What a program keeps is held, listed while it has a slot, and never shown as free or only cached."""
    driver = Driver(depth=1)
    driver.add(replace(request("a", range(2, 20), 4), keep=True))
    while driver.scheduler.has_work():
        driver.step()
    view = driver.scheduler.view()
    (one,) = view.running
    assert (one.id, one.state) == ("a", "open")
    assert Counter(view.cells)[FIRST] == one.blocks == driver.scheduler.stats().blocks_held
    driver.scheduler.park("a")
    view = driver.scheduler.view()
    assert view.running == []
    assert Counter(view.cells)[OTHER] == driver.scheduler.stats().blocks_held > 0
