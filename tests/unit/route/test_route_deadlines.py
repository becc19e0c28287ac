"""A cancellation counts whenever it comes, so that no watch outlives its engine."""

from __future__ import annotations

import asyncio

import pytest
from test_route_relay import run

from headrace.deadlines import in_time
from headrace.route.fleet import Fleet
from headrace.route.replica import Replica
from headrace.route.replica_watch import ReplicaWatch, WatchTimes
from headrace.route.upstream import Origin


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def is_cancelled(task: asyncio.Task[None]) -> bool:
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    found = task.cancelled()
    task.cancel()
    return found


@pytest.mark.parametrize("after", range(4))
def test_a_watch_ends_that_is_cancelled_as_an_answer_comes(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        gate = asyncio.get_running_loop().create_future()

        async def told(self: object, target: bytes) -> tuple[int, bytes]:
            await gate
            return 503, b""

        monkeypatch.setattr(ReplicaWatch, "_get", told)
        replica = Replica(0, "http://127.0.0.1:1")
        watch = ReplicaWatch(Fleet([replica]), replica, WatchTimes(60.0, 60.0), {})
        task = asyncio.create_task(watch.check_health())
        await steps(3)
        gate.set_result(None)
        await steps(after)
        assert await is_cancelled(task)

    run(check())


@pytest.mark.parametrize("after", range(4))
def test_a_request_ends_that_is_cancelled_as_it_is_connected(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Transport:
        def close(self) -> None:
            closed.append(True)

        def is_closing(self) -> bool:
            return False

        def write(self, data: bytes) -> None:
            """Nothing answers."""

    async def check() -> None:
        loop = asyncio.get_running_loop()
        gate = loop.create_future()

        async def connect(protocol: object, host: str, port: int) -> tuple[object, object]:
            await gate
            connection = protocol()  # type: ignore[operator]
            connection.connection_made(Transport())
            return Transport(), connection

        with monkeypatch.context() as patch:
            patch.setattr(loop, "create_connection", connect, raising=False)

            async def ask() -> None:
                await Origin("http://127.0.0.1:1").ask(b"GET", b"/", [])

            task = asyncio.create_task(ask())
            await steps(3)
            gate.set_result(None)
            await steps(after)
            assert await is_cancelled(task)
        assert closed or after == 0, "it is not left open"

    run(check())


def test_results_errors_and_silence() -> None:
    async def check() -> None:
        async def fails() -> None:
            raise ValueError("a fault")

        ended = []

        async def stays() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)

        assert await in_time(60, asyncio.sleep(0, "a")) == "a"
        with pytest.raises(ValueError, match="a fault"):
            await in_time(60, fails())
        with pytest.raises(asyncio.TimeoutError):
            await in_time(0.001, stays())
        assert ended == [True]

    run(check())


def test_the_end_of_events_has_a_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def silent(self: object) -> bool:
        raise asyncio.TimeoutError

    async def check() -> None:
        monkeypatch.setattr(ReplicaWatch, "_read_events", silent)
        replica = Replica(0, "http://127.0.0.1:1")
        replica.state = "ready"
        task = asyncio.create_task(ReplicaWatch(Fleet([replica]), replica, WatchTimes(60.0, 60.0), {}).follow_events())
        await steps(3)
        assert await is_cancelled(task)

    with caplog.at_level("INFO", "headrace.route"):
        run(check())
    assert caplog.messages == ["replica 0: its cache events ended: silence"]
