"""The launcher of a Ray cluster, with a stand-in for Ray: bundles, actors, and what ends which."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray_fake
import route_harness
from route_harness import TIMES, until
from test_route_relay import run

from headrace.cli.main import main
from headrace.config import Config, DeviceConfig, ScaleConfig
from headrace.errors import ConfigError, PlatformError
from headrace.route.fleet import Fleet
from headrace.route.roster import Roster
from headrace.scale import ray_cluster, ray_host
from headrace.scale.ray_launcher import RayLauncher
from headrace.scale.replica_set import ReplicaSet
from headrace.scale.restarts import RestartPolicy

COMMAND = (sys.executable, str(Path(route_harness.__file__).with_name("fake_replica.py")))
QUICK = RestartPolicy(most=2, first=0.01)


def config(**scale: Any) -> Config:
    return Config(device=DeviceConfig(platform="cpu"), scale=ScaleConfig(ray_address="auto", **scale))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ray_fake.FakeRay:
    fake = ray_fake.FakeRay()
    ray_fake.install(monkeypatch, fake)
    monkeypatch.setattr(ray_host, "_node_address", lambda: "127.0.0.1")
    return fake


@asynccontextmanager
async def running(ray: Any, path: str = "model", **scale: Any) -> AsyncIterator[tuple[ReplicaSet, Fleet]]:
    settings = config(**scale)
    roster = Roster(Fleet([]), TIMES, {})
    group = ReplicaSet(RayLauncher(ray, settings, Path("model"), COMMAND), Path(path), settings.scale, 5.0, QUICK)
    await group.start(roster)
    try:
        yield group, roster.fleet
    finally:
        await group.close()
        roster.close()
    assert ray.shut_down
    assert not ray.groups
    assert all(actor.dead.is_set() for actor in ray.actors)


def ready(fleet: Fleet) -> int:
    return sum(one.usable for one in fleet.replicas)


def test_actors_have_bundles_that_are_spread(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, replicas=3, min_replicas=2, max_replicas=4) as (group, fleet):
            await until(lambda: ready(fleet) == 3)
            assert [(len(one.bundles), one.strategy) for one in ray.groups] == [(2, "SPREAD"), (1, "SPREAD")]
            assert ray.groups[0].bundles == [{"CPU": 1.0}] * 2
            places = [actor.options["scheduling_strategy"] for actor in ray.actors]
            assert sorted((ray.groups.index(held), at) for held, at in places) == [(0, 0), (0, 1), (1, 0)]
            assert {(actor.options["num_cpus"], actor.options["max_restarts"]) for actor in ray.actors} == {(1.0, 0)}
            assert all("of actor" in row["where"] for row in group.members())
            group.scale(2)
            await until(lambda: len(ray.groups) == 1 and ready(fleet) == 2)

    run(check())


def test_engines_of_this_machine_alone_listen_on_its_loopback(
    ray: ray_fake.FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_host, "_node_address", lambda: "127.0.0.2")

    async def check() -> None:
        for address, host in (("local", "127.0.0.1"), ("auto", "127.0.0.2")):
            settings = config().model_copy(update={"scale": ScaleConfig(ray_address=address)})
            seat = await RayLauncher(ray, settings, Path("model"), COMMAND).seat()
            engine = await seat.start(Path("model"))
            assert engine.url.startswith(f"http://{host}:")
            await engine.kill()
            await seat.close()

    run(check())


def test_the_engines_key_shows_in_no_call(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        settings = config()
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"api_key": "sk-inner"})})
        seat = await RayLauncher(ray, settings, Path("model"), COMMAND).seat()
        engine = await seat.start(Path("model"))
        assert not any("sk-inner" in one for one in ray.asked)
        assert ray.kept == ["sk-inner"]
        reserved = ray.actors[0].held._reserved
        assert reserved.config.server.api_key == "sk-inner", "its process gets it"
        await engine.kill()
        await seat.close()

    run(check())


def test_an_actor_that_dies_is_replaced_in_its_bundle(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, replicas=2) as (group, fleet):
            await until(lambda: ready(fleet) == 2)
            ray.actors[0].die()
            await until(lambda: len(ray.actors) == 3 and ready(fleet) == 2)
            first, second, again = (actor.options["scheduling_strategy"][1] for actor in ray.actors)
            assert (sorted((first, second)), again) == ([0, 1], first)
            assert len(ray.groups) == 1
            assert sorted(row["restarts"] for row in group.members()) == [0, 1]

    run(check())


def test_an_engine_that_ends_takes_its_actor_with_it(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, replicas=1) as (_, fleet):
            await until(lambda: ready(fleet) == 1)
            ray.actors[0].held._child._signal(9)
            await until(lambda: len(ray.actors) == 2 and ready(fleet) == 1)
            assert ray.actors[0].dead.is_set()

    run(check())


def test_the_reports_of_engines_come_through(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, "unloadable", replicas=2) as (group, _):
            await group.failed.wait()
            assert any(row["why"] == "the weights are not there" for row in group.members())

    run(check())


def test_an_update_needs_room_and_gives_it_back(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, replicas=2) as (group, fleet):
            await until(lambda: ready(fleet) == 2)
            ray.room = 2
            group.update(None)
            await until(lambda: group.summary()["update"]["state"] == "failed")
            assert "the Ray cluster had no room for 1 bundles" in group.summary()["update"]["error"]
            assert (len(ray.groups), ready(fleet)) == (1, 2)
            ray.room = 3
            group.update(None)
            await until(lambda: group.summary()["update"]["state"] == "done")
            assert ready(fleet) == 2

    run(check())


def test_the_name_of_the_model_stands_for_its_first_files_alone(
    ray: ray_fake.FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[tuple[str, str]] = []
    start = ray_host.RayHost.start

    async def noted(host: ray_host.RayHost, version: str, path: str, name: str, *rest: Any) -> dict[str, Any]:
        names.append((path, name))
        return await start(host, version, path, name, *rest)

    monkeypatch.setattr(ray_host.RayHost, "start", noted)

    async def check() -> None:
        async with running(ray, replicas=1) as (group, fleet):
            await until(lambda: ready(fleet) == 1)
            group.update("newer")
            await until(lambda: group.summary()["update"]["state"] == "done")
        assert names == [("model", Config().model.model), ("newer", "")]

    run(check())


def test_the_port_of_an_engine_is_held_until_it_has_ended(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        async with running(ray, replicas=1) as (_, fleet):
            await until(lambda: ready(fleet) == 1)
            held = ray.actors[0].held._reserved
            assert held._socket.fileno() >= 0
            ray.actors[0].held._child._signal(9)
            await until(lambda: held._socket.fileno() < 0)

    run(check())


def test_actors_that_cannot_start(ray: ray_fake.FakeRay) -> None:
    async def check() -> None:
        launcher = RayLauncher(ray, config(replicas=2), Path("model"), COMMAND)
        seat = await launcher.seat()
        ray.refuse = True
        with pytest.raises(PlatformError, match="could not start an engine's actor: no worker could be started"):
            await seat.start(Path("model"))
        assert ray.actors[0].dead.is_set()
        ray.refuse = False
        launcher.config = launcher.config.model_copy(update={"scale": ScaleConfig(start_timeout=0.01)})

        async def never(*arguments: Any) -> None:
            await asyncio.Event().wait()

        ray_start = ray_host.RayHost.start
        try:
            ray_host.RayHost.start = never  # type: ignore[method-assign, assignment]
            with pytest.raises(PlatformError, match=r"no actor for an engine within 0\.01 s"):
                await seat.start(Path("model"))
        finally:
            ray_host.RayHost.start = ray_start  # type: ignore[method-assign]
        await seat.close()

    run(check())


def test_nodes_with_another_version_are_refused(ray: ray_fake.FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_host, "__version__", "0.0.9")

    async def check() -> None:
        seat = await RayLauncher(ray, config(replicas=1), Path("model"), COMMAND).seat()
        with pytest.raises(ConfigError, match=r"has Headrace 0\.0\.9 and the router .*: install the same"):
            await seat.start(Path("model"))

    run(check())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["serve", "--replicas", "2", "--ray-address", "local"]) == 2
    assert "--ray-address needs Ray: pip install 'headrace[ray]'" in capsys.readouterr().err


class _Refusing:
    def __init__(self, error: Exception) -> None:
        self.error, self.settings = error, dict[str, Any]()

    def init(self, **settings: Any) -> None:
        self.settings = settings
        raise self.error

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (
            ConnectionError("none found\nmore"),
            ConfigError,
            r"there is no Ray cluster: start one with `ray start --head`",
        ),
        (RuntimeError("versions\ndiffer"), PlatformError, "Ray cannot be used: versions differ"),
    ],
)
def test_a_cluster_that_cannot_be_reached(
    error: Exception, kind: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = _Refusing(error)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: refusing)
    with pytest.raises(kind, match=why):
        ray_cluster.open_cluster(config())
    assert "num_cpus" not in refusing.settings, "a cluster's own figures are not touched"
    local = config().model_copy(update={"scale": ScaleConfig(ray_address="local")})
    with pytest.raises(kind):
        ray_cluster.open_cluster(local)
    assert refusing.settings["include_dashboard"] is False


def test_ray_is_imported_only_where_it_is_asked_for() -> None:
    code = (
        "import sys; import headrace.cli.replica_serving, headrace.scale.ray_launcher, headrace.scale.replica_set, "
        "headrace.route.router_run; sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
