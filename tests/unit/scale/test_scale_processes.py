"""Replicas as processes of this machine: started with the router, and started again when they end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import route_harness
from route_harness import TIMES, until
from test_route_relay import run

from headrace.cli.main import main
from headrace.cli.replica_serving import replica_configs
from headrace.config import Config, DeviceConfig, ParallelConfig, ScaleConfig
from headrace.errors import ConfigError, EngineDead, PlatformError
from headrace.platforms.host import physical_cores
from headrace.route.fleet import Fleet
from headrace.route.roster import Roster
from headrace.route.router_run import RouterOptions, run_router
from headrace.scale import member
from headrace.scale.local_launcher import LocalLauncher
from headrace.scale.replica_child import Reserved, start_child
from headrace.scale.replica_set import ReplicaSet
from headrace.scale.restarts import RestartPolicy

COMMAND = (sys.executable, str(Path(route_harness.__file__).with_name("fake_replica.py")))
CPU = Config(device=DeviceConfig(platform="cpu"))
QUICK = RestartPolicy(most=2, first=0.01)


def group(path: str, replicas: int = 1, drain: float = 5.0) -> tuple[ReplicaSet, Roster]:
    launcher = LocalLauncher([CPU], True, COMMAND)
    found = ReplicaSet(launcher, Path(path), ScaleConfig(replicas=replicas), drain, QUICK)
    return found, Roster(Fleet([]), TIMES, {})


def serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_replica_that_is_killed_comes_back_at_its_address() -> None:
    async def check() -> None:
        it, roster = group("model", 2)
        await it.start(roster)
        try:
            await until(lambda: sum(one.usable for one in roster.fleet.replicas) == 2)
            before = {one.number: one.url for one in roster.fleet.replicas}
            first, second = (row["where"] for row in it.members())
            os.kill(int(first.removeprefix("process ")), signal.SIGKILL)
            await until(lambda: it.members()[0]["restarts"] == 1)
            await until(lambda: sum(one.usable for one in roster.fleet.replicas) == 2)
            assert {one.number: one.url for one in roster.fleet.replicas} == before
            assert it.members()[0]["where"] not in (first, None)
            assert it.members()[1]["where"] == second
        finally:
            await it.close()
            roster.close()
        assert not any(map(serves, before.values()))

    run(check())


def test_a_replica_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "KILL_AFTER", 0.1)

    async def check() -> None:
        it, roster = group("deaf", drain=0.0)
        await it.start(roster)
        await until(lambda: any(one.usable for one in roster.fleet.replicas))
        (url,) = (one.url for one in roster.fleet.replicas)
        await it.close()
        roster.close()
        assert not serves(url)

    run(check())


def test_what_a_process_reports_is_its_end() -> None:
    async def check() -> None:
        for path, why, final in (
            ("unloadable", "the weights are not there", True),
            ("broken", "its process ended with code 3", False),
        ):
            reserved = Reserved(CPU)
            child = await start_child(reserved, Path(path), "", COMMAND)
            assert child.url == reserved.url
            assert tuple(await child.wait()) == (why, final)
            reserved.close()
        child = await start_child(Reserved(CPU), Path("model"), "", COMMAND)
        await child.kill()
        assert await child.wait() == ("its process ended with signal 9", False)
        await child.stop()

    run(check())


@pytest.mark.parametrize(
    ("path", "why"), [("unloadable", "the weights are not there"), ("broken", "ended with code 3")]
)
def test_a_router_whose_engines_cannot_start_ends_with_one_error(
    path: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    it, _ = group(path, 2)
    with pytest.raises(EngineDead, match=f"^no replica can be started: .*{why}$"):
        run_router(RouterOptions((), port=0), it)
    assert capfd.readouterr().out == "", "it never said that it serves"


def test_a_model_that_cannot_be_read_ends_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The real process: its error comes to the user once, and nothing is started again."""
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert main(["serve", str(tmp_path), "--replicas", "2", "--platform", "cpu", "--port", "0"]) == 2
    shown = capfd.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, shown.err
    assert errors[0].startswith("error: no replica can be started: ")
    assert "Traceback" not in shown.err


def test_places_that_are_devices_have_one_engine_each() -> None:
    async def check() -> None:
        parts = [CPU.model_copy(update={"device": DeviceConfig(platform="cpu", index=number)}) for number in range(2)]
        launcher = LocalLauncher(parts, False, COMMAND)
        first, second = await launcher.seat(), await launcher.seat()
        with pytest.raises(PlatformError, match="all 2 places for engines are taken"):
            await launcher.seat()
        await first.close()
        third = await launcher.seat()
        assert third._reserved.config.device.index == 0
        await second.close()
        await third.close()
        shared = LocalLauncher(parts[:1], True, COMMAND)
        seats = [await shared.seat() for _ in range(3)]
        assert len({seat._reserved.url for seat in seats}) == 3
        for seat in seats:
            await seat.close()

    run(check())


def test_replicas_of_the_host_share_its_cores() -> None:
    one, two = replica_configs(CPU, 2)
    assert one.device.threads == two.device.threads == max(1, physical_cores() // 2)
    given = CPU.model_copy(update={"device": DeviceConfig(platform="cpu", threads=3)})
    assert replica_configs(given, 2)[0].device.threads == 3


def test_other_devices_are_one_for_each() -> None:
    simulated = Config(device=DeviceConfig(platform="sim"))
    assert [one.device.index for one in replica_configs(simulated, 1)] == [0]
    with pytest.raises(ConfigError, match="--replicas 2: platform sim has 1 device, which"):
        replica_configs(simulated, 2)
    most = simulated.model_copy(update={"scale": ScaleConfig(max_replicas=2)})
    with pytest.raises(ConfigError, match=r"^--max-replicas 2: platform sim has 1 device, which"):
        replica_configs(most, 2)
    with pytest.raises(ConfigError, match="enough for 0 replicas of 2"):
        replica_configs(simulated.model_copy(update={"parallel": ParallelConfig(tensor_parallel_size=2)}), 1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["route"], "URL"),
        (["route", "https://x"], "is no engine's address"),
        (["route", "http://x/v1"], "without a path"),
        (["route", "notaurl"], "'notaurl' is no engine's address"),
        (["route", "http://x:1", ":8000"], "':8000' is no engine's address"),
        (["route", "http://"], "'http://' is no engine's address"),
        (["route", "http://:8000"], "is no engine's address"),
        (["route", "http://x:port"], "is no engine's address"),
        (["route", "http://x:99999"], "is no engine's address"),
        (["route", "http://x:0"], "is no engine's address"),
        (["route", "http://me@x:1"], "is no engine's address"),
        (["route", "http://x:1?a=b"], "is no engine's address"),
        (["route", "http://[::1"], "is no engine's address"),
        (["route", "http://a b:1"], "is no engine's address"),
        (["route", "http://x:1", "x:1"], "are the same"),
        (["route", "http://x:1", "--tokenizer", "model"], "MODEL=PATH"),
        (["route", "http://x:1", "--health-timeout", "0"], "--health-timeout must be more than 0"),
        (["serve", "--replicas", "0"], "--replicas 0"),
        (["serve", "--replicas", "2", "--max-replicas", "1"], "--max-replicas 1: there are 2 at the start"),
        (["serve", "--replicas", "2", "--min-replicas", "3"], "--min-replicas 3: there are 2 at the start"),
        (["serve", "--ray-address", "http://x"], "it is auto, local, or the HOST:PORT"),
        (["serve", "--replicas", "2", "--prompt", "Hi"], "--prompt cannot be combined with --replicas"),
        (["serve", "--max-replicas", "2", "--state-dir", "x"], "--state-dir cannot be combined"),
        (["serve", "--replicas", "2", "--uds", "x"], "--uds cannot be combined with --replicas: the router"),
        (["serve", "--replicas", "2", "--ssl-certfile", "x"], "--ssl-certfile cannot be combined with --replicas"),
        (["serve", "--replicas", "2", "--root-path", "/x"], "--root-path cannot be combined with --replicas"),
        (["serve", "--target-ttft", "1s"], "--target-ttft has no effect: --max-replicas"),
        (["serve", "--replicas", "2", "--target-queue", "9"], "--target-queue has no effect: --max-replicas"),
        (["serve", "--max-restarts", "1"], "--max-restarts has no effect: there is one engine"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if arguments == ["route"] else nullcontext():
        assert main(arguments) == 2
    assert why in capsys.readouterr().err


def test_the_number_of_engines_that_options_mean() -> None:
    for options, bounds in (
        ({}, (1, 1, 1)),
        ({"replicas": 2}, (2, 2, 2)),
        ({"max_replicas": 4}, (1, 1, 4)),
        ({"min_replicas": 2}, (2, 2, 2)),
        ({"min_replicas": 2, "max_replicas": 4}, (2, 2, 4)),
        ({"replicas": 3, "min_replicas": 1}, (1, 3, 3)),
        ({"replicas": 3, "min_replicas": 1, "max_replicas": 9}, (1, 3, 9)),
    ):
        scale = ScaleConfig.model_validate(options)
        assert (scale.least, scale.first, scale.most) == bounds
        assert scale.grouped == (scale.most > 1)
    assert ScaleConfig(ray_address="auto").grouped
