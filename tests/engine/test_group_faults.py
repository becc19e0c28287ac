"""Two prefill and two decode engines behind a router: whatever happens to one of them, or between them, every request
ends with a single engine's answer or with one clear error, and no block stays held."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from group_harness import DECODE, PREFILL, Asked, Group, cut, damaged, delayed, mixed
from server_harness import until


@pytest.fixture(scope="module")
def group(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    options = {
        "cache": {"num_blocks": 200},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 128},
    }
    made = Group(tiny_llama, tmp_path_factory.mktemp("group"), options, 300)
    yield made
    made.close()


def _requests(group: Group, count: int, seed: int) -> list[Asked]:
    return mixed(count, group.length, seed)


def _no_errors(ends: Counter[str]) -> None:
    assert not ends.keys() - {"answer", "left"}, ends


def test_all_goes_well(group: Group) -> None:
    ends = group.storm(_requests(group, 120, 1))
    _no_errors(ends)
    group.settled()
    assert group.router.split() > 20
    assert group.router.figures()["headrace_router_early_tokens_total"] > 0
    fetched = [group.figure(number, 'headrace_tier_hits_total{tier="tcp"}') for number in DECODE]
    assert min(fetched) > 50, "prompts were computed where they are answered"


def test_events_tell_of_the_disk(group: Group) -> None:
    """Whoever asks for the contents of an engine's cache learns what lies on its disk."""
    group.storm([Asked("greedy", text, False) for text in ("abc " * 80, "def " * 80)] * 10)

    def stored(number: int) -> float:
        """One engine may have none: the router may send both prompts to the other."""
        return group.figure(number, 'headrace_tier_stored_total{tier="disk"}')

    until(lambda: max(map(stored, DECODE)) > 0)
    with group.servers[max(DECODE, key=stored)].http.stream("GET", "/v1/engine/events") as reply:
        lines = reply.iter_lines()
        assert next(lines) == "event: contents"
        runs = json.loads(next(lines).removeprefix("data: "))["runs"]
    tiers = {tier for _, tier, _ in runs}
    assert tiers == {"device", "disk"}
    names = {tier: {name for _, one, names in runs for name in names if one == tier} for tier in tiers}
    assert names["disk"] & names["device"], "both name blocks alike"


@pytest.mark.parametrize("number", [PREFILL[0], DECODE[0]])
def test_a_device_process_is_killed(group: Group, number: int) -> None:
    """Its server starts another one."""
    server = group.servers[number]
    ends = group.storm(_requests(group, 100, 2 + number), server.engine.kill)
    # Streams that had begun go on at the other engine.
    _no_errors(ends)
    group.ready()
    group.settled()


@pytest.mark.parametrize("number", [PREFILL[1], DECODE[1]])
def test_a_server_is_killed(group: Group, number: int) -> None:
    ends = group.storm(_requests(group, 100, 6 + number), group.servers[number].process.kill)
    _no_errors(ends)
    group.settled(number)
    group.restart(number)
    group.ready()
    _no_errors(group.storm(_requests(group, 20, 6)))
    group.settled()


@pytest.mark.parametrize("number", [PREFILL[0], DECODE[1]])
def test_a_process_stands_still(group: Group, number: int) -> None:
    """The device's process of an engine for prompts, which answers checks of its health; the server of the other."""
    server = group.servers[number]
    stopped = server.engine if number in PREFILL else psutil.Process(server.process.pid)
    try:
        ends = group.storm(_requests(group, 80, 20 + number), lambda: stopped.send_signal(signal.SIGSTOP))
        _no_errors(ends)
    finally:
        stopped.send_signal(signal.SIGCONT)
    group.ready()
    group.settled()


@pytest.mark.parametrize("fault", [damaged, cut, delayed])
def test_blocks_are_disturbed_on_their_way(group: Group, fault: Callable[[int, bytes], bytes | None]) -> None:
    before = group.router.split()
    group.line.now = fault
    ends = group.storm(_requests(group, 80, 30))
    group.line.now = lambda at, data: data
    _no_errors(ends)
    assert group.router.split() > before + 10
    group.settled()


def test_the_disk_is_full(group: Group) -> None:
    def failures() -> float:
        return sum(group.figure(number, 'headrace_tier_failures_total{tier="disk"}') for number in DECODE)

    before = failures()
    with group.full_disk():
        _no_errors(group.storm(_requests(group, 80, 40) * 2))
        until(lambda: failures() > before)
    group.settled()


def test_the_router_is_killed(group: Group) -> None:
    """Its requests end with it; what it had asked of engines does, too."""
    ends = group.storm(_requests(group, 60, 50), group.router.kill)
    assert ends["router lost"] > 0
    group.router = group.new_router()
    group.settled()
    _no_errors(group.storm(_requests(group, 20, 51)))
