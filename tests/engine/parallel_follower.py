"""A rank that keeps packed weights of any size: `parallel_follower.py (cold|warm) SOCKET`. A warm one must not read a
checkpoint."""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed import cache
from headrace.engine.ranks.follower import main
from headrace.errors import CheckpointError


def refuse(*args: Any, **kwargs: Any) -> None:
    raise CheckpointError("the checkpoint's weights are read")


if __name__ == "__main__":
    cache._WORTH = 0
    if sys.argv[1] == "warm":
        Checkpoint.build = refuse  # type: ignore[method-assign]
    os._exit(main(sys.argv[2:]))
