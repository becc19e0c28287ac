"""An engine that makes four steps a second while a file is there, so that what a test wants to meet at work is at work:
`python slow_engine.py FILE LINK PARENT`. Commands are taken at any speed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.engine.core_loop import EngineCore
from headrace.engine.process import main
from headrace.types import Delta

PACE = 0.25

Step = Callable[[EngineCore], list[Delta]]


def slowed(step: Step, file: Path) -> Step:
    last = 0.0

    def run(core: EngineCore) -> list[Delta]:
        nonlocal last
        if file.exists():
            if time.monotonic() < last + PACE:
                time.sleep(0.002)
                return []
            last = time.monotonic()
        return step(core)

    return run


if __name__ == "__main__":
    EngineCore.step = slowed(EngineCore.step, Path(sys.argv[1]))  # type: ignore[method-assign]
    os._exit(main(sys.argv[2:]))
