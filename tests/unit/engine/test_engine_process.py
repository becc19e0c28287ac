"""The engine in a process of its own: it dies, hangs, cannot load, loses its parent, and is restarted."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from engine_fakes import ByteTokenizer, expected, make_request

from headrace.config import Config, ModelConfig
from headrace.engine.api import GenerateRequest
from headrace.engine.remote import ProcessClient
from headrace.errors import CheckpointError, EngineDead, HeadraceError, InvalidRequest, Overloaded

COMMAND = (sys.executable, str(Path(__file__).with_name("engine_fake_process.py")))
LONG = {"max_tokens": 1000, "seed": 0}


def make_client(model: str = "fake") -> ProcessClient:
    return ProcessClient(Config(model=ModelConfig(model=model)), ByteTokenizer(), command=COMMAND)


@asynccontextmanager
async def running(model: str = "fake") -> AsyncIterator[ProcessClient]:
    client = make_client(model)
    await client.start()
    pid = client.pid
    try:
        yield client
    finally:
        await client.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def ids_of(client: ProcessClient, request: GenerateRequest) -> list[int]:
    return [i async for output in client.generate(request) for i in output.token_ids]


async def refusal(client: ProcessClient) -> HeadraceError | None:
    """What a short request is refused with; None where it is answered."""
    try:
        found = await ids_of(client, make_request("hey", max_tokens=5, seed=0))
    except (EngineDead, Overloaded) as error:
        return error
    assert found == expected(tuple(b"hey"), 5)
    return None


async def ill(client: ProcessClient) -> HeadraceError | None:
    try:
        await client.check_health()
    except (EngineDead, Overloaded) as error:
        return error
    return None


async def answered_again(client: ProcessClient) -> None:
    """Try until the restarted engine answers, as clients do that heed Retry-After."""
    deadline = time.monotonic() + 20
    while (error := await refusal(client)) is not None:
        assert isinstance(error, Overloaded)
        assert 0 < error.retry_after < 60
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def kill(client: ProcessClient, number: int) -> None:
    assert client.pid is not None
    os.kill(client.pid, number)


def test_requests_stats_and_close() -> None:
    async def main() -> None:
        async with running() as client:
            requests = [make_request((i, i + 1), id=f"r{i}", max_tokens=20, seed=i) for i in range(30)]
            found = await asyncio.gather(*(ids_of(client, r) for r in requests))
            assert found == [expected(r.prompt, 20, seed=i) for i, r in enumerate(requests)]
            await client.check_health()
            stats = await client.stats()
            assert (stats.scheduler.running, stats.restarts) == (0, 0)
            assert client.info.platform == "fake"
            with pytest.raises(InvalidRequest):
                await ids_of(client, make_request("hey", n=0))
        with pytest.raises(EngineDead, match="closed"):
            await client.stats()

    asyncio.run(main())


def test_nobody_else_can_connect() -> None:
    """Both ends of the link were made by one process; neither has a name, or a port."""

    async def main() -> None:
        async with running() as client:
            for process in (psutil.Process(client.pid), psutil.Process()):
                found = process.net_connections("all")
                assert not [one for one in found if one.status == "LISTEN"]
                assert not [one for one in found if "headrace" in str(one.laddr)]

    asyncio.run(main())


def test_what_nobody_closes_is_ended_by_the_collector() -> None:
    pids: list[int | None] = []

    async def main() -> None:
        client = make_client()
        await client.start()
        pids.append(client.pid)

    asyncio.run(main())
    gc.collect()
    assert pids[0] is not None
    assert not psutil.pid_exists(pids[0])


def test_kill_fails_what_runs_and_the_next_request_is_answered() -> None:
    async def main() -> None:
        async with running("fake:slow") as client:
            tasks = [asyncio.create_task(ids_of(client, make_request("hey", id=f"r{i}", **LONG))) for i in range(5)]
            await asyncio.sleep(0.2)
            start = time.monotonic()
            kill(client, signal.SIGKILL)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert time.monotonic() - start < 1
            assert [type(error) for error in found] == [EngineDead] * 5
            assert "signal 9" in str(found[0])
            with pytest.raises(HeadraceError):
                await client.check_health()
            with pytest.raises(Overloaded, match="restarted"):
                await ids_of(client, make_request("hey"))
            await answered_again(client)
            assert (await client.stats()).restarts == 1
            await client.check_health()

    asyncio.run(main())


def test_a_lost_device_restarts_the_engine() -> None:
    async def main() -> None:
        async with running("fake:lost") as client:
            with pytest.raises(EngineDead, match="fell off the bus"):
                await ids_of(client, make_request("hey", **LONG))

    asyncio.run(main())


def test_a_stopped_engine_is_unhealthy_within_seconds_and_recovers() -> None:
    async def main() -> None:
        async with running() as client:
            kill(client, signal.SIGSTOP)
            start = time.monotonic()
            while (error := await ill(client)) is None:
                assert time.monotonic() - start < 4
                await asyncio.sleep(0.05)
            assert isinstance(error, EngineDead)
            assert "not answered" in str(error)
            assert isinstance(await refusal(client), EngineDead)
            kill(client, signal.SIGCONT)
            await asyncio.sleep(0.7)
            await client.check_health()
            assert await ids_of(client, make_request("hey", max_tokens=5, seed=0)) == expected(tuple(b"hey"), 5)

    asyncio.run(main())


def test_an_engine_that_hangs_for_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.remote._KILL_AFTER", 1.5)

    async def main() -> None:
        async with running("fake:slow") as client:
            task = asyncio.create_task(ids_of(client, make_request("hey", **LONG)))
            await asyncio.sleep(0.1)
            kill(client, signal.SIGSTOP)
            with pytest.raises(EngineDead, match="hung"):
                await task
            await answered_again(client)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        ("fake:refuse", CheckpointError, "model.gguf.*blk.0.*5 of 10"),
        ("fake:crash", EngineDead, "ZeroDivisionError: by zero"),
        ("fake:die", EngineDead, "code 7"),
    ],
)
def test_loading_errors(model: str, error: type[Exception], match: str) -> None:
    async def main() -> None:
        client = make_client(model)
        with pytest.raises(error, match=match):
            await client.start()
        assert client.pid is None
        await client.close()

    asyncio.run(main())


def test_progress() -> None:
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        config = Config(model=ModelConfig(model="fake"))
        client = ProcessClient(config, ByteTokenizer(), lambda stage, done: seen.append((stage, done)), COMMAND)
        await client.start()
        await client.close()

    asyncio.run(main())
    assert seen == [("weights", percent / 100) for percent in range(0, 101, 20)]


def test_the_engine_is_given_up_after_some_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.remote._MOST_DEATHS", 2)
    monkeypatch.setattr("headrace.engine.remote._LONGEST_DELAY", 0.01)

    async def main() -> None:
        async with running() as client:
            client._command = (sys.executable, "-c", "raise SystemExit(3)")
            kill(client, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while "given up" not in str(await ill(client)):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert isinstance(await refusal(client), EngineDead)

    asyncio.run(main())


ORPHAN = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from test_engine_process import make_client
async def main():
    client = make_client("fake:slow")
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_the_parent(stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ORPHAN, here], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 3
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine is still there"
        time.sleep(0.02)
