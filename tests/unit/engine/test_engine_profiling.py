"""Profiles of steps: they begin, end by themselves or when asked, and leave a trace that can be read."""

from __future__ import annotations

import asyncio
import gzip
import json
import queue
from pathlib import Path
from typing import Any

import pytest
import torch.profiler

from headrace.client.profile_calls import ProfileCalls
from headrace.engine.profiling import ProfileReport, StepProfiler
from headrace.engine.wire import (
    Profiled,
    StartProfile,
    StopProfile,
    decode_command,
    decode_event,
    encode,
    to_wire,
)
from headrace.errors import ConfigError, EngineDead, HeadraceError, InvalidRequest


def stopped(profiler: StepProfiler) -> ProfileReport | HeadraceError:
    found: queue.SimpleQueue[ProfileReport | HeadraceError] = queue.SimpleQueue()
    profiler.stop(found.put)
    return found.get(timeout=60)


def trace(report: Any) -> list[str]:
    with gzip.open(report.file) as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if "name" in event]


def step(profiler: StepProfiler) -> None:
    with profiler.span("launch"):
        pass
    profiler.passed()


def test_a_profile_shows_the_steps_until_it_is_stopped(tmp_path: Path) -> None:
    profiler, folder = StepProfiler(), tmp_path / "new" / "profiles"
    step(profiler)
    profiler.start(folder, 100)
    for _ in range(3):
        step(profiler)
    report = stopped(profiler)
    assert isinstance(report, ProfileReport)
    assert report.steps == 3
    assert [str(path) for path in folder.iterdir()] == [report.file]
    assert trace(report).count("headrace: launch") == 3
    with pytest.raises(InvalidRequest, match="start_profile"):
        profiler.stop(lambda found: None)


def test_it_ends_by_itself_and_one_runs_at_a_time(tmp_path: Path) -> None:
    profiler = StepProfiler()
    profiler.start(tmp_path, 2)
    with pytest.raises(InvalidRequest, match="runs already"):
        profiler.start(tmp_path, 2)
    for _ in range(5):
        step(profiler)
    report: Any = stopped(profiler)
    assert report.steps == 2
    assert trace(report).count("headrace: launch") == 2
    profiler.start(tmp_path, 1)
    step(profiler)
    profiler.start(tmp_path, 1)  # The one before has ended, though nobody has asked for its file.
    step(profiler)
    assert isinstance(stopped(profiler), ProfileReport)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="without torch"):
        StepProfiler("this platform computes without torch").start(tmp_path, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--profile-dir"):
        StepProfiler().start(tmp_path / "file" / "below", 1)
    assert StepProfiler().span("x") is StepProfiler().span("y"), "without a profile nothing is made"


def test_a_file_that_cannot_be_written_is_an_error_of_the_call(tmp_path: Path) -> None:
    profiler = StepProfiler()
    profiler.start(tmp_path / "gone", 5)
    step(profiler)
    (tmp_path / "gone").rmdir()
    found = stopped(profiler)
    assert isinstance(found, ConfigError)
    assert "cannot be written" in str(found)


def test_messages_travel() -> None:
    for command in (StartProfile(1, "/x", 5), StopProfile(2)):
        assert decode_command(encode(command)) == command
    for event in (Profiled(1), Profiled(2, "/x/a.json.gz", 3, to_wire(ConfigError("no")))):
        assert decode_event(encode(event)) == event


def test_each_call_gets_its_own_answer() -> None:
    async def main() -> None:
        sent: list[Any] = []
        calls = ProfileCalls(sent.append)
        first, second = asyncio.ensure_future(calls.start("/x", 5)), asyncio.ensure_future(calls.stop())
        await asyncio.sleep(0)
        begun, ended = sent
        assert (begun.folder, begun.steps) == ("/x", 5)
        calls.receive(Profiled(ended.number, "/x/a", 5))
        calls.receive(Profiled(begun.number, error=to_wire(ConfigError("no room"))))
        assert await second == ProfileReport("/x/a", 5)
        with pytest.raises(ConfigError, match="no room"):
            await first
        lost = asyncio.ensure_future(calls.stop())
        await asyncio.sleep(0)
        calls.fail(EngineDead("it died"))
        calls.receive(Profiled(99))
        with pytest.raises(EngineDead, match="it died"):
            await lost

    asyncio.run(main())


class Broken:
    """A profile of torch that fails."""

    def __init__(self, at: str) -> None:
        self._at = at

    def __call__(self, **options: Any) -> Broken:
        return self

    def start(self) -> None:
        self._fail("start")

    def stop(self) -> None:
        self._fail("stop")

    def _fail(self, where: str) -> None:
        if where == self._at:
            raise RuntimeError(f"no {where}")


def test_a_profile_that_does_not_begin_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = StepProfiler()
    with monkeypatch.context() as planted:
        planted.setattr(torch.profiler, "profile", Broken("start"))
        with pytest.raises(RuntimeError, match="no start"):
            profiler.start(tmp_path, 1)
    step(profiler)
    profiler.start(tmp_path, 1)
    step(profiler)
    assert isinstance(stopped(profiler), ProfileReport)


def test_a_profile_that_does_not_end_fails_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = StepProfiler()
    monkeypatch.setattr(torch.profiler, "profile", Broken("stop"))
    profiler.start(tmp_path, 1)
    step(profiler)
    found = stopped(profiler)
    assert isinstance(found, ConfigError)
    assert "no stop" in str(found)


def test_two_profiles_have_files_of_their_own(tmp_path: Path) -> None:
    profiler, files = StepProfiler(), set()
    for _ in range(2):
        profiler.start(tmp_path, 1)
        step(profiler)
        report = stopped(profiler)
        assert isinstance(report, ProfileReport)
        files.add(report.file)
    assert len(files) == len(list(tmp_path.iterdir())) == 2
