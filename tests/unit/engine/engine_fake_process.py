"""An engine process without a model: `python engine_fake_process.py LINK PARENT`.

The configured model's name says what it does: `fake`, `fake:slow` (20 ms a step), `fake:refuse` (a truncated file),
`fake:crash` (an error that is none of ours), `fake:die` (no last word), `fake:lost` (the device is lost at step 5),
`fake:forever` (loads without end).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_fakes import FakeEngine, FakeRunner, make_engine

from headrace.config import Config
from headrace.engine.process import main
from headrace.errors import CheckpointError, DeviceLost


def build(config: Config, progress: Callable[[str, float], None]) -> FakeEngine:
    kind = config.model.model.partition(":")[2]
    for percent in range(0, 101, 20):
        progress("weights", percent / 100)
    if kind == "refuse":
        raise CheckpointError("ends after 5 of 10 bytes", "model.gguf", "blk.0")
    if kind == "crash":
        raise ZeroDivisionError("by zero")
    if kind == "die":
        os._exit(7)
    if kind == "forever":
        threading.Event().wait()
    lost = DeviceLost("fell off the bus") if kind == "lost" else None
    return make_engine(
        FakeRunner(
            length=4096, delay=0.02 if kind == "slow" else 0.0, fail=lambda plan: lost if plan.step == 5 else None
        ),
        max_model_len=4096,
        num_blocks=4096,
    )


if __name__ == "__main__":
    os._exit(main(sys.argv[1:], build))
