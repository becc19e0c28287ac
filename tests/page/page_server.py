"""A server on a real port with the fake engine of the unit tests, for a browser."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from headrace.config import Config

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "server"))

import server_fakes
from pool_fakes import FakeEngines, make_app, plan
from server_fakes import ByteTokenizer, FakeClient

from headrace.server import create_app

# Longer answers than those of the unit tests.
server_fakes.CONTEXT = 4000
server_fakes.LIMITS = msgspec.structs.replace(server_fakes.LIMITS, max_model_len=4000, num_blocks=1000)


class PageServer:
    """Runs in a thread. It can be stopped and started again on the same port."""

    def __init__(self, key: str | None = None, models: tuple[str, ...] = (), **engine: Any) -> None:
        """`models`: the names of several, each of which answers with its name."""
        base = Config()
        self._config = base.model_copy(update={"server": base.server.model_copy(update={"api_key": key})})
        self.engine = FakeClient(**engine)
        self.engines = FakeEngines(options=engine)
        self._models = models
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        if self._models:
            _, app = make_app(self._config, list(map(plan, self._models)), self.engines)
        else:
            app = create_app(self.engine, ByteTokenizer(), self._config)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                host="127.0.0.1",
                port=self._port,
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def release(self) -> None:
        """Let the streams go on that wait at the engine's `hold`."""
        self.engine.hold = None
        loop = self.engine.go._loop  # type: ignore[attr-defined]
        loop.call_soon_threadsafe(self.engine.go.set)
