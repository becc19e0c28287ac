"""A server whose limits of time are a test's: `python patient_server.py MODEL CONFIG LIMITS`, both JSON.

LIMITS: `silence`, `exit` and `at_once` in seconds, as in the modules below; `slow`, a file: while it is there, the
first engine takes its time (`slow_engine.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from headrace.client import base_client as client
from headrace.client import engine_process as spawn
from headrace.client import process_client
from headrace.config import Config
from headrace.engine.launch import launch
from headrace.server import http_server, run


def forking() -> AbstractContextManager[object]:
    """An engine that starts in here is a fork, since this process is one that has imported it (`engine_forks`). What
    the engine itself starts is not."""
    from fork_server import popen_by_fork

    stand_in = SimpleNamespace(**vars(subprocess))
    patch = mock.patch("headrace.engine.spawn.subprocess", stand_in)
    stand_in.Popen = partial(popen_by_fork, lambda: patch.__exit__(None, None, None))
    return patch


if __name__ == "__main__":
    model, config, limits = Path(sys.argv[1]), Config.model_validate_json(sys.argv[2]), json.loads(sys.argv[3])
    process_client._SILENCE = limits.get("silence", 600.0)
    process_client._KILL_AFTER = client._STATS_TIMEOUT = client._FRESH_TIMEOUT = client._VIEW_TIMEOUT = 600.0
    spawn._EXIT_TIMEOUT = limits.get("exit", spawn._EXIT_TIMEOUT)
    http_server.HARD_EXIT = limits.get("at_once", http_server.HARD_EXIT)
    with ExitStack() as stack:
        launched = None
        if "slow" in limits:
            command = (sys.executable, str(Path(__file__).with_name("slow_engine.py")), limits["slow"])
            with nullcontext() if "torch" not in sys.modules else forking():
                launched = stack.enter_context(launch(command))
        sys.exit(run(config, model, launched=launched))
