"""The engine in a separate process: it exits, hangs, cannot load, loses its parent, and is restarted."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_fakes import ByteTokenizer, expected, make_request

from headrace.client import engine_process as spawn
from headrace.client import process_client
from headrace.client.api import GenerateRequest
from headrace.client.process_client import ProcessClient
from headrace.config import Config, ModelConfig
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.errors import CheckpointError, EngineDead, HeadraceError, InvalidRequest, Overloaded

pytestmark = pytest.mark.usefixtures("forks")
COMMAND = (sys.executable, str(Path(__file__).with_name("engine_fake_process.py")))
LONG = {"max_tokens": 4000, "seed": 0}
"""More than a slow engine gives in any test's time."""


def make_client(
    model: str = "fake",
    launched: EngineProcessHandle | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> ProcessClient:
    return ProcessClient(Config(model=ModelConfig(model=model)), ByteTokenizer(), progress, COMMAND, launched)


@asynccontextmanager
async def running(model: str = "fake", launched: EngineProcessHandle | None = None) -> AsyncIterator[ProcessClient]:
    client = make_client(model, launched)
    await client.start()
    pid = client.pid
    try:
        yield client
    finally:
        await client.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def until(condition: Callable[[], Any]) -> None:
    """`condition` may be a coroutine's function. Turns are counted: a machine that stands still takes none."""
    for _ in range(3000):
        if await found if inspect.isawaitable(found := condition()) else found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("did not happen within a minute")


async def beaten(client: ProcessClient) -> None:
    """Until the engine is heard again, which ends its silence."""
    client._silence = -1e6
    await until(lambda: client._silence > -1e5)


async def ids_of(client: ProcessClient, request: GenerateRequest) -> list[int]:
    return [i async for output in client.generate(request) for i in output.token_ids]


async def refusal(client: ProcessClient) -> HeadraceError | None:
    """The error of a short request; None if it is answered."""
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

    async def answered() -> bool:
        error = await refusal(client)
        if error is not None:
            assert isinstance(error, Overloaded)
            assert 0 < error.retry_after < 60
        return error is None

    await until(answered)


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


def test_stats_are_there_before_the_first_request() -> None:
    async def main() -> None:
        async with running() as client:
            await until(lambda: client._stats.last is not None)

    asyncio.run(main())


def test_no_other_process_can_connect() -> None:
    """Both ends of the link were made by one process; neither has a name or a port."""

    async def main() -> None:
        async with running() as client:
            for process in (psutil.Process(client.pid), psutil.Process()):
                found = process.net_connections("all")
                assert not [one for one in found if one.status == "LISTEN"]
                assert not [one for one in found if "headrace" in str(one.laddr)]

    asyncio.run(main())


def test_one_that_loads_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not listen yet: who closes it does not wait."""
    monkeypatch.setattr(spawn, "_EXIT_TIMEOUT", 600.0)
    stages: list[str] = []

    async def main() -> None:
        with launch(COMMAND) as launched:
            client = make_client("fake:forever", launched, lambda stage, done: stages.append(stage))
            loading = asyncio.create_task(client.start())
            try:
                await until(lambda: "weights" in stages)
                assert not loading.done()
            finally:
                await asyncio.wait_for(client.close(), 60)
                loading.cancel()
            assert not psutil.pid_exists(launched.process.pid)

    asyncio.run(main())


def test_an_engine_that_is_not_closed_is_ended_by_the_collector() -> None:
    pids: list[int | None] = []

    async def main() -> None:
        client = make_client()
        await client.start()
        pids.append(client.pid)

    asyncio.run(main())
    gc.collect()
    assert pids[0] is not None
    assert not psutil.pid_exists(pids[0])


def test_kill_fails_what_runs_and_the_next_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    restart, refused = ProcessClient._restart, asyncio.Event()

    async def later(client: ProcessClient) -> None:
        await refused.wait()
        await restart(client)

    monkeypatch.setattr(ProcessClient, "_restart", later)

    async def main() -> None:
        async with running("fake:slow") as client:
            tasks = [asyncio.create_task(ids_of(client, make_request("hey", id=f"r{i}", **LONG))) for i in range(5)]

            async def all_run() -> bool:
                return (await client.stats()).scheduler.running == 5

            await until(all_run)
            kill(client, signal.SIGKILL)
            found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
            assert [type(error) for error in found] == [EngineDead] * 5
            assert "signal 9" in str(found[0])
            with pytest.raises(HeadraceError):
                await client.check_health()
            with pytest.raises(Overloaded, match="restarted"):
                await ids_of(client, make_request("hey"))
            refused.set()
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


def test_a_stopped_engine_is_unhealthy_within_seconds_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running() as client:
            kill(client, signal.SIGSTOP)
            monkeypatch.setattr(process_client, "_SILENCE", 0.1)
            await until(lambda: ill(client))
            error = await ill(client)
            assert isinstance(error, EngineDead)
            assert "not answered" in str(error)
            assert isinstance(await refusal(client), EngineDead)
            kill(client, signal.SIGCONT)
            # A tenth of a second is less than the time for which a busy machine may keep a healthy engine waiting.
            monkeypatch.setattr(process_client, "_SILENCE", 600.0)
            await beaten(client)
            await client.check_health()
            assert await ids_of(client, make_request("hey", max_tokens=5, seed=0)) == expected(tuple(b"hey"), 5)

    asyncio.run(main())


def test_only_silence_that_was_listened_to_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stood still for longer than an engine may be silent has heard no beat, and lost no engine."""

    async def main() -> None:
        async with running() as client:
            await beaten(client)
            monkeypatch.setattr(process_client, "_SILENCE", 0.5)
            monkeypatch.setattr(process_client, "_KILL_AFTER", 0.5)
            kill(client, signal.SIGSTOP)
            time.sleep(1.0)
            await client.check_health()
            kill(client, signal.SIGCONT)
            monkeypatch.setattr(process_client, "_SILENCE", 600.0)
            monkeypatch.setattr(process_client, "_KILL_AFTER", 600.0)
            assert await refusal(client) is None
            assert (await client.stats()).restarts == 0

    asyncio.run(main())


def test_an_engine_that_hangs_for_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running("fake:slow") as client:
            stream = client.generate(make_request("hey", **LONG))
            await anext(stream)
            kill(client, signal.SIGSTOP)
            monkeypatch.setattr(process_client, "_KILL_AFTER", 0.1)
            with pytest.raises(EngineDead, match="hung"):
                [output async for output in stream]
            monkeypatch.setattr(process_client, "_KILL_AFTER", 600.0)
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
    monkeypatch.setattr("headrace.client.process_client._MAX_EXITS", 2)
    monkeypatch.setattr("headrace.client.process_client._MAX_DELAY", 0.01)

    async def main() -> None:
        async with running() as client:
            client._command = (sys.executable, "-c", "raise SystemExit(3)")
            kill(client, signal.SIGKILL)

            async def given_up() -> bool:
                return "could not be restarted in" in str(await ill(client))

            await until(given_up)
            assert isinstance(await refusal(client), EngineDead)

    asyncio.run(main())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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
    asyncio.run(until(lambda: gone(pid)))
