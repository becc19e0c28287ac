"""One replica of a process group: `python -m headrace.route.replica_process PARENT`, with its setup as JSON on standard
input. It serves until SIGTERM, and ends with its parent."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from pathlib import Path

from headrace.config import Config
from headrace.environment import read_environment
from headrace.errors import HeadraceError

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(parent: int) -> int:
    """Returns the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 0
    # Of a terminal's Ctrl-C the parent alone is in charge.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.load(sys.stdin)
    config = Config.model_validate(setup["config"])
    level = read_environment().log_level
    logging.basicConfig(
        level="WARNING" if level == "info" else level.upper(),
        format=f"%(levelname)s port {config.server.port} %(name)s: %(message)s",
    )
    # Late: until here a parent that has ended is noticed at once.
    from headrace.server import run

    try:
        return run(config, Path(setup["path"]))
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
