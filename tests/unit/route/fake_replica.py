"""A replica's process with a stub in place of the engine: `python fake_replica.py PARENT`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from stub_engine import Stub


async def main() -> None:
    setup = json.load(sys.stdin)
    if setup["path"] == "broken":
        sys.exit(3)
    if setup["path"] == "unloadable":
        Path(setup["report"]).write_text('{"error": "the weights are not there", "final": true}')
        sys.exit(2)
    stub = Stub()
    await stub.start(setup["config"]["server"]["port"])
    ended = asyncio.Event()
    if setup["path"] != "deaf":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    await ended.wait()


asyncio.run(main())
