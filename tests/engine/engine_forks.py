"""Servers, engines and ranks of tests are forks of one process that has imported torch and the engine: of the three
seconds of processor time that a server with its engine takes to start, the imports are more than two.

Real processes are shown in `test_engine_real_process`, `test_parallel_server` and wherever the command `headrace` runs.
"""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

from fork_server import ForkServer

__all__ = ["forks"]


@cache
def forks() -> ForkServer:
    """Made when it is first needed; it ends with the tests."""
    server = ForkServer(
        "headrace.engine.startup",
        "headrace.engine.rank_loading",
        "headrace.engine.process",
        "headrace.engine.ranks.follower",
        "patient_server",
        "slow_engine",
        folders=[Path(__file__).parent, Path(__file__).parents[1]],
    )
    atexit.register(server.close)
    return server
