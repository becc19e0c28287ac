"""What an engine of a set may survive, and what a set may: errors of later starts, full places, faults of our own."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from launcher_fake import FakeEngine, FakeLauncher
from route_harness import until
from stub_engine import Stub
from test_route_relay import run
from test_scale_set import NEVER_FAILS, QUICK, scaled

from headrace.errors import AddressTaken, ConfigError, HeadraceError, ModelNotFound, NoRoom
from headrace.scale import member, replica_set
from headrace.scale.member import Member
from headrace.scale.replica_process import _model, report_of


def test_what_has_worked_is_started_again_after_an_error_that_would_be_final() -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), replicas=2) as it:
            it.running[0].crash("the KV cache needs 4 GiB, 1 GiB are available", final=True)
            await until(lambda: len(it.launcher.engines) == 3 and it.ready == 2)
            it.launcher.refuse = ConfigError("the port is taken")
            it.running[0].crash()
            await until(lambda: any(row["why"] == "the port is taken" for row in it.group.members()))
            it.launcher.refuse = None
            await until(lambda: it.ready == 2)
            assert "failed" not in [row["phase"] for row in it.group.members()]

    run(check())


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (NoRoom("the KV cache needs 4 GiB, 1 GiB are available"), True),
        (AddressTaken("cannot listen on 127.0.0.1:1: another server starts there"), True),
        (ConfigError("--threads 0"), False),
    ],
)
def test_what_passes_is_tried_again_although_nothing_has_worked(error: HeadraceError, passes: bool) -> None:
    async def check() -> None:
        launcher = FakeLauncher()
        launcher.refuse = error
        async with scaled(launcher, policy=NEVER_FAILS, wait=False, replicas=1) as it:
            await until(lambda: it.group.members()[0]["phase"] == ("waiting" if passes else "failed"))
            launcher.refuse = None
            if passes:
                await until(lambda: it.ready == 1)

    run(check())
    assert report_of(error) == {"error": str(error), "final": not passes}


def test_the_time_to_load_is_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[float] = []
    times: list[float] = []
    after_end = member.after_end

    def noted(policy: member.RestartPolicy, ends: int, ended: member.Ended) -> object:
        served.append(ended.seconds)
        times.append(time.monotonic())
        return after_end(policy, ends, ended)

    monkeypatch.setattr(member, "after_end", noted)

    async def check() -> None:
        def make(number: int, path: Path) -> Stub:
            return Stub(mode="draining")

        policy = QUICK._replace(steady=0.3, most=0)
        async with scaled(FakeLauncher(make), policy=policy, wait=False, replicas=1, ray_address="auto") as it:
            await until(lambda: it.running)
            await asyncio.sleep(0.1)
            times.append(time.monotonic())
            it.running[0].stub.mode = "ok"
            await until(lambda: it.ready == 1)
            it.running[0].crash()
            await until(lambda: served)

    run(check())
    assert served[0] <= times[1] - times[0], "from when it was ready, not from its start"


def test_a_new_one_waits_for_the_place_of_one_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_set, "_EVERY", 1000)
    monkeypatch.setattr(member, "KILL_AFTER", 0.1)

    async def check() -> None:
        launcher = FakeLauncher(most=2)
        async with scaled(launcher, replicas=2, min_replicas=1, max_replicas=2, drain=0.2) as it:
            last = asyncio.Event()
            for one in it.running:
                one.stub.mode, one.last = "deaf", last
            it.group.scale(1)
            it.group.scale(2)
            await until(lambda: any(one.stopped for one in launcher.engines))
            await asyncio.sleep(0.05)
            assert len(it.running) == len(launcher.engines) == 2, "its place is not free yet"
            last.set()
            await until(lambda: len(launcher.engines) == 3 and it.ready == 2)
            assert [(row["restarts"], row["phase"]) for row in it.group.members()] == [(0, "ready")] * 2

    run(check())


class _Stuck(FakeEngine):
    async def stop(self) -> None:
        self.crash()
        raise RuntimeError("nobody has thought of this")


def test_an_update_that_meets_a_fault_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with scaled(FakeLauncher(), replicas=2) as it:
            it.running[0].__class__ = _Stuck
            it.group.update("newer")
            await until(lambda: it.group.summary()["update"]["state"] not in ("running", "taking back"))
            update = it.group.summary()["update"]
            why = "nobody has thought of this; the 1 that were replaced have model again"
            assert (update["state"], update["error"]) == ("failed", why)
            assert [one["phase"] for one in it.group.members()].count("ready") == 2
            it.launcher.engines[0].__class__ = FakeEngine
            it.group.update(None)
            await until(lambda: it.group.summary()["update"]["state"] == "done")

    with caplog.at_level(logging.ERROR):
        run(check())
    assert "the update has ended with 1 of 2 replicas: nobody has thought of this" in caplog.text


def test_faults_do_not_keep_a_set_from_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_set, "_EVERY", 0.01)

    def broken(*arguments: object) -> None:
        raise RuntimeError("the load cannot be read")

    monkeypatch.setattr(replica_set, "observe", broken)
    end = Member.end

    async def failing(self: Member, drain_timeout: float) -> None:
        await end(self, drain_timeout)
        if self.number == 0:
            raise RuntimeError("it would not end")

    monkeypatch.setattr(Member, "end", failing)

    async def check() -> None:
        # That all engines have ended is what `scaled` asserts.
        async with scaled(FakeLauncher(), min_replicas=2, max_replicas=3) as it:
            await until(lambda: it.ready == 2 and "the load cannot be read" in caplog.text)

    with caplog.at_level(logging.ERROR):
        run(check())
    assert "replica 0 could not be ended" in caplog.text


def test_engines_that_are_held_back_are_not_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_set, "_EVERY", 0.01)
    seen: list[tuple[int, int]] = []
    observe = replica_set.observe

    def noted(replicas: object, coming: int, now: float, away: int) -> object:
        seen.append((coming, away))
        return observe(replicas, coming, now, away)  # type: ignore[arg-type]

    monkeypatch.setattr(replica_set, "observe", noted)

    async def check() -> None:
        async with scaled(FakeLauncher(), min_replicas=2, max_replicas=3) as it:
            await until(lambda: seen and seen[-1] == (0, 0))
            it.state.fleet.replicas[0].held_back = True
            await until(lambda: seen[-1] == (0, 1))
            assert len(it.group.members()) == 2

    run(check())


def test_a_path_that_cannot_be_looked_for_is_not_on_this_machine(tmp_path: Path) -> None:
    """As one in a folder of another user: the model of that name is looked for then."""
    with pytest.raises(ModelNotFound, match="headrace pull some/model"):
        _model({"path": str(tmp_path / ("a" * 300)), "name": "some/model"})
