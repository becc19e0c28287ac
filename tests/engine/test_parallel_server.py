"""A server whose engine runs on two ranks: it answers, starts its engine anew when a rank dies, and no rank outlives
it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from server_harness import Server, make_model, running, until

from headrace.platforms.cpu.native import missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
PARALLEL = {"parallel": {"tensor_parallel_size": 2}}


def rank_of(server: Server) -> psutil.Process:
    (rank,) = server.engine.children()
    assert "headrace.engine.ranks.follower" in rank.cmdline()
    return rank


def test_a_server_on_two_ranks(tmp_path: Path) -> None:
    make_model(tmp_path)
    with running(tmp_path, PARALLEL) as server:
        wanted = server.complete(max_tokens=8).json()["choices"][0]
        engine, rank = server.engine, rank_of(server)
        rank.kill()
        server.complete(max_tokens=8)  # whoever asks next may be told of the end
        until(lambda: not engine.is_running())
        until(lambda: server.complete(max_tokens=8).status_code == 200)
        assert server.complete(max_tokens=8).json()["choices"][0] == wanted
        again = rank_of(server)
        assert again.pid != rank.pid
        server.engine.kill()
        until(lambda: not again.is_running() or again.status() == psutil.STATUS_ZOMBIE)
