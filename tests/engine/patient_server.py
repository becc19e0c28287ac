"""A server whose limits of time are a test's: `python patient_server.py MODEL CONFIG LIMITS`, both JSON.

LIMITS: `silence`, `exit` and `at_once` in seconds, as in the modules below; `slow`, a file: while it is there, the
first engine takes its time (`slow_engine.py`).
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from headrace.client import base_client as client
from headrace.client import engine_process as spawn
from headrace.client import process_client
from headrace.config import Config
from headrace.engine.launch import launch
from headrace.server import http_server, run

if __name__ == "__main__":
    model, config, limits = Path(sys.argv[1]), Config.model_validate_json(sys.argv[2]), json.loads(sys.argv[3])
    process_client._SILENCE = limits.get("silence", 600.0)
    process_client._KILL_AFTER = client._STATS_TIMEOUT = client._FRESH_TIMEOUT = 600.0
    spawn._EXIT_TIMEOUT = limits.get("exit", spawn._EXIT_TIMEOUT)
    http_server.HARD_EXIT = limits.get("at_once", http_server.HARD_EXIT)
    with ExitStack() as stack:
        launched = None
        if "slow" in limits:
            command = (sys.executable, str(Path(__file__).with_name("slow_engine.py")), limits["slow"])
            launched = stack.enter_context(launch(command))
        sys.exit(run(config, model, launched=launched))
