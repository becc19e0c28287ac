"""A server process over the fake engine, for tests of signals: `python server_process.py OPTIONS`, JSON with `server`,
`engine`, `first_prompt`, and `at_once`, the seconds between a second signal and a hard exit. An engine that is held
goes on when standard input ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from server_fakes import ByteTokenizer, FakeClient

from headrace.config import Config
from headrace.server import draining, http_server
from headrace.server.lifecycle import serve
from headrace.server.listening import bound


class Engine(FakeClient):
    async def start(self) -> None:
        threading.Thread(target=self._wait, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        os.read(0, 1)
        loop.call_soon_threadsafe(self.go.set)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    config = Config.model_validate({"server": {"port": 0, **options.get("server", {})}})
    engine = Engine(**options.get("engine", {}))
    draining._FINAL_EVENTS = 300.0
    http_server.HARD_EXIT = options.get("at_once", http_server.HARD_EXIT)
    with bound(config.server) as listener:
        code = asyncio.run(serve(config, engine, ByteTokenizer(), listener, options.get("first_prompt")))
    print(f"stopped {engine.stopped}", flush=True)
    sys.exit(code)
