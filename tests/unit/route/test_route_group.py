"""Engines that are started with the router, and started again when they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from route_harness import until
from test_route_relay import run

from headrace.cli.main import main
from headrace.cli.replica_serving import replica_configs
from headrace.config import Config, DeviceConfig, ParallelConfig
from headrace.errors import ConfigError
from headrace.platforms.host import physical_cores
from headrace.route import process_group
from headrace.route.process_group import ProcessGroup

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_replica.py")))
CPU = Config(device=DeviceConfig(platform="cpu"))


def serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_replica_that_is_killed_comes_back_at_its_address() -> None:
    async def check() -> None:
        group = ProcessGroup([CPU, CPU], "model", COMMAND)
        assert len(set(group.urls)) == 2
        group.start()
        try:
            await until(lambda: all(map(serves, group.urls)))
            first, second = group.pids
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until(lambda: group.pids[0] not in (first, None) and serves(group.urls[0]))
            assert group.pids[1] == second
        finally:
            await group.close()
        assert not any(map(serves, group.urls))

    run(check())


def test_a_replica_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_KILL_AFTER", 0.1)
    patient = CPU.model_copy(update={"server": CPU.server.model_copy(update={"drain_timeout": 0.0})})

    async def check() -> None:
        group = ProcessGroup([patient], "deaf", COMMAND)
        group.start()
        await until(lambda: serves(group.urls[0]))
        await group.close()
        assert not serves(group.urls[0])

    run(check())


def test_starts_that_fail_come_ever_more_seldom() -> None:
    async def check() -> None:
        group = ProcessGroup([CPU], "broken", COMMAND)
        group.start()
        (one,) = group._members
        await until(lambda: one.ends == 2)
        await asyncio.wait_for(group.close(), 10)
        assert one.ends == 2, "the third start would come a second later"

    run(check())


def test_replicas_of_the_host_share_its_cores() -> None:
    one, two = replica_configs(CPU, 2)
    assert one.device.threads == two.device.threads == max(1, physical_cores() // 2)
    given = CPU.model_copy(update={"device": DeviceConfig(platform="cpu", threads=3)})
    assert replica_configs(given, 2)[0].device.threads == 3


def test_other_devices_are_one_for_each() -> None:
    simulated = Config(device=DeviceConfig(platform="sim"))
    assert [one.device.index for one in replica_configs(simulated, 1)] == [0]
    with pytest.raises(ConfigError, match="--replicas 2: platform sim has 1 devices"):
        replica_configs(simulated, 2)
    with pytest.raises(ConfigError, match="enough for 0 replicas of 2"):
        replica_configs(simulated.model_copy(update={"parallel": ParallelConfig(tensor_parallel_size=2)}), 1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["route"], "URL"),
        (["route", "https://x"], "is no engine's address"),
        (["route", "http://x/v1"], "without a path"),
        (["route", "http://x:1", "x:1"], "are the same"),
        (["route", "http://x:1", "--tokenizer", "model"], "MODEL=PATH"),
        (["route", "http://x:1", "--health-timeout", "0"], "--health-timeout must be more than 0"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if arguments == ["route"] else nullcontext():
        assert main(arguments) == 2
    assert why in capsys.readouterr().err
