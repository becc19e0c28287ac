"""Engines in actors of a Ray cluster on this machine: killed, more and fewer, replaced, and no request is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from replicas_harness import Replicated, actor_processes, replicated
from server_harness import until

pytest.importorskip("ray", reason="Ray is not installed: ci/ray.sh runs these where it is")


@pytest.fixture(scope="module")
def on_ray(tiny_llama: Path) -> Iterator[Replicated]:
    with replicated(tiny_llama, "--replicas 2 --min-replicas 1 --max-replicas 3 --ray-address local") as served:
        yield served


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_replica_is_started_again(on_ray: Replicated, which: int) -> None:
    """`which`: its server, or the actor."""
    until(lambda: len(on_ray.ready()) == 2, on_ray.rows)
    with on_ray.load():
        victim = on_ray.ready()[0]
        psutil.Process(actor_processes(victim)[which]).kill()
        number, restarts = victim["replica"], victim["restarts"]
        until(
            lambda: any(row["replica"] == number and row["restarts"] > restarts for row in on_ray.ready()), on_ray.rows
        )
        assert len(on_ray.rows()) == 2


def test_more_and_fewer(on_ray: Replicated) -> None:
    with on_ray.load():
        assert on_ray.http.post("/v1/router/scale", json={"replicas": 3}).status_code == 200
        until(lambda: len(on_ray.ready()) == 3, on_ray.rows)
        assert on_ray.http.post("/v1/router/scale", json={"replicas": 2}).status_code == 200
        until(lambda: len(on_ray.rows()) == 2, on_ray.rows)


def test_an_update_loses_nothing(on_ray: Replicated, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.cli.main import main

    until(lambda: len(on_ray.ready()) == 2, on_ray.rows)
    before = {actor_processes(row) for row in on_ray.ready()}
    with on_ray.load():
        assert on_ray.http.post("/v1/router/update", json={}).status_code == 202
        until(lambda: on_ray.group()["update"]["state"] != "running", on_ray.rows)
        assert len(on_ray.ready()) == 2
    assert on_ray.group()["update"] == {"state": "done", "done": 2, "of": 2, "error": None}
    assert not before & {actor_processes(row) for row in on_ray.ready()}
    assert main(["status", on_ray.url]) == 0
    shown = capsys.readouterr().out
    assert shown.count("of actor") == 2
    assert "update: done, 2 of 2 replaced" in shown
