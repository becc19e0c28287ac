"""A set of replicas behind a router on a real socket, with stubs in place of engines: nothing that happens to them
loses a request that had not begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from launcher_fake import FakeEngine, FakeLauncher
from route_harness import PATIENCE, TIMES, until
from stub_engine import Stub
from test_route_relay import run

from headrace.config import ScaleConfig
from headrace.errors import EngineDead, InvalidRequest, PlatformError
from headrace.route.fleet import Fleet
from headrace.route.roster import Roster
from headrace.route.router_app import RouterApp, RouterState
from headrace.scale import replica_set
from headrace.scale.autoscaling import Targets
from headrace.scale.replica_set import ReplicaSet
from headrace.scale.restarts import RestartPolicy
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.http_server import make_server

MODEL = Path("model")
QUICK = RestartPolicy(most=3, first=0.01)
NEVER_FAILS = RestartPolicy(most=1000, first=0.01)


class Scaled:
    def __init__(self, group: ReplicaSet, launcher: FakeLauncher, state: RouterState, http: httpx.AsyncClient) -> None:
        self.group, self.launcher, self.state, self.http = group, launcher, state, http

    @property
    def ready(self) -> int:
        return sum(one.usable for one in self.state.fleet.replicas)

    @property
    def running(self) -> list[FakeEngine]:
        return [one for one in self.launcher.engines if not one._end.done()]

    async def ask(self) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        return await self.http.post("/v1/chat/completions", json=body)

    async def stream(self) -> int:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        return (await self.http.post("/v1/chat/completions", json=body)).status_code

    async def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.http.get("/v1/router/replicas")).json()["replicas"]
        return found


@asynccontextmanager
async def scaled(
    launcher: FakeLauncher,
    path: Path = MODEL,
    targets: Targets | None = None,
    policy: RestartPolicy = QUICK,
    wait: bool = True,
    drain: float = PATIENCE,
    **options: Any,
) -> AsyncIterator[Scaled]:
    fleet = Fleet([])
    group = ReplicaSet(launcher, path, ScaleConfig(**options), drain, policy, targets)
    state = RouterState(fleet, group=group)
    server = make_server(RouterApp(state), DescriptorWatch())
    kind: Any = server.config.http_protocol_class
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: kind(server.config, server.server_state, {}), "127.0.0.1", 0)
    roster = Roster(fleet, TIMES, {})
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        await group.start(roster)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            it = Scaled(group, launcher, state, http)
            if wait:
                await until(lambda: it.ready == len(group.members()))
            yield it
    finally:
        await group.close()
        roster.close()
        listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await asyncio.sleep(0)
    assert launcher.closed
    assert launcher.seats == 0
    assert not it.running


@asynccontextmanager
async def load(it: Scaled, clients: int = 8) -> AsyncIterator[None]:
    """Requests all the time, of which each must be answered."""
    over = False

    async def client() -> int:
        count = 0
        while not over:
            reply = await it.ask()
            assert reply.status_code == 200, reply.text
            count += 1
        return count

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        yield
    finally:
        over = True
        counts = await asyncio.gather(*tasks)
    assert min(counts) > 0


def test_a_killed_replica_is_started_again_and_no_request_is_lost() -> None:
    async def check() -> None:
        launcher = FakeLauncher(lambda number, path: Stub(wait=0.02))
        async with scaled(launcher, replicas=2) as it, load(it):
            await until(lambda: it.launcher.engines[0].stub.posts)
            it.launcher.engines[0].crash()
            await until(lambda: len(it.launcher.engines) == 3 and it.ready == 2)
            assert [row["restarts"] for row in await it.rows()] in ([1, 0], [0, 1])
            await until(lambda: it.launcher.engines[2].stub.posts)
            figures = (await it.http.get("/metrics")).text
            assert 'headrace_router_restarts{replica="0"}' in figures

    run(check())


def test_a_model_that_cannot_be_loaded_is_one_error_at_once() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), Path("broken"), wait=False, replicas=2) as it:
            await asyncio.wait_for(it.group.failed.wait(), PATIENCE)
            with pytest.raises(EngineDead, match=r"^no replica can be started: the model cannot be read$"):
                it.group.raise_failure()
            assert len(it.launcher.engines) == 2, "each was started once"

    run(check())


def test_starts_that_always_fail_have_an_end() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), Path("weak"), wait=False, replicas=1, ray_address="auto") as it:
            await asyncio.wait_for(it.group.failed.wait(), PATIENCE)
            with pytest.raises(EngineDead, match="it fell over"):
                it.group.raise_failure()
            assert len(it.launcher.engines) == 1 + QUICK.most
            (row,) = await it.rows()
            assert (row["state"], row["why"], row["restarts"]) == ("failed", "it fell over", 3)
            reply = await it.http.get("/health")
            assert (reply.status_code, "replica 0: it fell over" in reply.text) == (503, True)

    run(check())


def test_one_that_is_given_up_leaves_the_others() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), replicas=2) as it:
            for _ in range(QUICK.most + 1):
                await until(lambda: it.ready == 2)
                url = next(one.url for one in it.state.fleet.replicas if one.number == 1)
                next(one for one in it.running if one.url == url).crash()
                await until(lambda url=url: url not in [one.url for one in it.state.fleet.replicas])
            await until(lambda: it.group.members()[1]["phase"] == "failed")
            assert not it.group.failed.is_set()
            assert (await it.ask()).status_code == 200
            it.group.update(None)
            await until(lambda: it.group.summary()["update"]["state"] == "done")
            assert it.ready == 2, "an update replaces it, too"

    run(check())


def test_one_that_is_never_ready_is_started_again() -> None:
    async def check() -> None:
        def make(number: int, path: Path) -> Stub:
            return Stub(mode="draining" if number == 0 else "ok")

        async with scaled(
            FakeLauncher(make), replicas=1, ray_address="auto", start_timeout=0.5, policy=NEVER_FAILS
        ) as it:
            assert len(it.launcher.engines) >= 2
            assert (await it.rows())[0]["restarts"] >= 1

    run(check())


def test_one_that_does_not_answer_is_killed_and_started_again() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), policy=QUICK._replace(silent=0.3), replicas=2) as it:
            hanging = it.running[0]
            hanging.stub.silence()
            await until(lambda: len(it.launcher.engines) == 3 and it.ready == 2)
            assert hanging not in it.running
            assert (await it.ask()).status_code == 200

    run(check())


def test_more_and_fewer_while_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_set, "_EVERY", 1000)

    async def check() -> None:
        launcher = FakeLauncher(lambda number, path: Stub(wait=0.02))
        async with scaled(launcher, replicas=2, min_replicas=1, max_replicas=4) as it, load(it):
            reply = await it.http.post("/v1/router/scale", json={"replicas": 4})
            assert reply.json()["wanted"] == 4
            await until(lambda: it.ready == 4)
            await until(lambda: all(one.stub.posts for one in it.running))
            reply = await it.http.post("/v1/router/scale", json={"replicas": 1})
            assert (reply.status_code, reply.json()["wanted"]) == (200, 1)
            await until(lambda: len(it.running) == 1)
            assert it.ready == 1
            assert all(one.stopped for one in launcher.engines if one not in it.running)
            reply = await it.http.post("/v1/router/scale", json={"replicas": 5})
            assert (reply.status_code, "from 1 to 4" in reply.text) == (400, True)
            reply = await it.http.post("/v1/router/scale", json={"count": 5})
            assert (reply.status_code, '{"replicas": NUMBER}' in reply.json()["error"]["message"]) == (400, True)

    run(check())


def test_an_update_has_the_new_before_the_old_and_loses_nothing() -> None:
    async def check() -> None:
        launcher = FakeLauncher(lambda number, path: Stub(wait=0.02))
        async with scaled(launcher, replicas=2) as it, load(it):
            least = 2

            async def watch() -> None:
                nonlocal least
                while True:
                    least = min(least, it.ready)
                    await asyncio.sleep(0.001)

            watching = asyncio.create_task(watch())
            old = list(launcher.engines)
            reply = await it.http.post("/v1/router/update", json={"path": "newer"})
            assert (reply.status_code, reply.json()["update"]["state"]) == (202, "running")
            again = await it.http.post("/v1/router/update", json={})
            assert (again.status_code, again.json()["error"]["code"]) == (409, "update_running")
            again = await it.http.post("/v1/router/scale", json={"replicas": 2})
            assert (again.status_code, "wait until it has ended" in again.text) == (409, True)
            with pytest.raises(InvalidRequest, match="an update of all replicas runs"):
                it.group.scale(2)
            await until(lambda: it.group.summary()["update"]["state"] == "done")
            watching.cancel()
            assert it.group.summary()["update"] == {"state": "done", "done": 2, "of": 2, "error": None}
            assert least >= 2
            assert all(one.stopped for one in old)
            assert [one.path for one in it.running] == [Path("newer")] * 2
            it.running[0].crash()
            await until(lambda: it.ready == 2)
            assert {one.path for one in it.running} == {Path("newer")}, "a restart has the new model, too"

    run(check())


@pytest.mark.parametrize("path", ["broken", "weak"])
def test_an_update_that_cannot_start_changes_nothing(path: str) -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), replicas=2) as it:
            old = it.running
            it.group.update(path)
            await until(lambda: it.group.summary()["update"]["state"] == "failed")
            update = it.group.summary()["update"]
            assert (update["done"], update["of"]) == (0, 2)
            assert "replica 2 did not start: " in update["error"]
            await until(lambda: len(it.group.members()) == 2)
            assert it.running == old
            assert not it.group.failed.is_set()
            it.group.update(None)
            await until(lambda: it.group.summary()["update"]["state"] == "done")
            assert {one.path for one in it.running} == {MODEL}

    run(check())


@pytest.mark.parametrize("back", [True, False])
def test_an_update_that_fails_half_way_is_taken_back(back: bool) -> None:
    """Otherwise one name would stand for two models, of which a request gets either."""

    def make(number: int, path: Path) -> Stub:
        if number >= 4 and (path.name == "newer" or not back):
            raise PlatformError("the device has no memory left")
        return Stub()

    async def check() -> None:
        async with scaled(FakeLauncher(make), replicas=3) as it:
            async with load(it, 2):
                it.group.update("newer")
                await until(lambda: it.group.summary()["update"]["state"] == "failed")
                await until(lambda: len(it.group.members()) == 3 and it.ready == 3)
            update = it.group.summary()["update"]
            assert (update["done"], update["of"]) == (1, 3)
            assert "the device has no memory left; " in update["error"]
            assert ("the 1 that were replaced have model again" in update["error"]) == back
            assert ("the new path stays for 1 replica, because one with model did not" in update["error"]) != back
            newer = [one for one in it.running if one.path == Path("newer")]
            assert len(newer) == (0 if back else 1)

    run(check())


def test_an_update_without_a_free_place_says_so() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(most=2), replicas=2) as it:
            it.group.update(None)
            await until(lambda: it.group.summary()["update"]["state"] == "failed")
            assert it.group.summary()["update"]["error"].endswith("all places are taken")
            assert it.ready == 2

    run(check())


def test_the_load_brings_engines_and_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_set, "_EVERY", 0.01)
    targets = Targets(1, 3, queue=2, up_after=0.03, down_after=0.1)

    async def check() -> None:
        gate = asyncio.Event()

        def make(number: int, path: Path) -> Stub:
            stub = Stub()
            stub.gate = gate
            return stub

        async with scaled(FakeLauncher(make), min_replicas=1, max_replicas=3, targets=targets) as it:
            asked = [asyncio.create_task(it.stream()) for _ in range(12)]
            await until(lambda: it.ready == 3)
            gate.set()
            for one in asked:
                assert await one == 200
            await until(lambda: it.ready == 1 and len(it.running) == 1)
            assert (await it.ask()).status_code == 200

    run(check())


def test_a_router_without_a_group_starts_nothing() -> None:
    from route_harness import routed

    async def check() -> None:
        async with routed([Stub()]) as it:
            for path in ("scale", "update"):
                reply = await it.http.post(f"/v1/router/{path}", json={"replicas": 2})
                assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_group")

    run(check())
