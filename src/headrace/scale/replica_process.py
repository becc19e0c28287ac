"""The process of one replica: `python -m headrace.scale.replica_process PARENT`, with its setup as JSON on standard
input. It serves until SIGTERM, and ends with its parent. If it cannot serve, it leaves the reason in the file `report`
of its setup."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.environment import read_environment
from headrace.errors import HeadraceError, lasts

__all__ = ["main", "report_of"]

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
        return run(config, _model(setup))
    except HeadraceError as error:
        Path(setup["report"]).write_text(json.dumps(report_of(error)), encoding="utf-8")
        return 2


def report_of(error: HeadraceError) -> dict[str, Any]:
    """Why there is nothing to serve, and whether another start would end in the same way."""
    return {"error": " ".join(str(error).split()), "final": lasts(error)}


def _model(setup: dict[str, Any]) -> Path:
    """The model's files: where the parent has them, or where this machine has the model of that name. Raises what
    finding it raises."""
    path = Path(setup["path"])
    # `Path.exists` would raise for a folder of another user, which here may be none of the parent's.
    if os.path.exists(path) or not setup.get("name"):
        return path
    from headrace.hub.catalogue import find_local

    return find_local(setup["name"])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
