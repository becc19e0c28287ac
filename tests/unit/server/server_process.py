"""A server process over the fake engine, for tests of signals: `python server_process.py PORT-FILE-DESCRIPTOR OPTIONS`."""

from __future__ import annotations

import asyncio
import json
import sys

from server_fakes import ByteTokenizer, FakeClient

from headrace.config import Config
from headrace.server.lifecycle import _bind, serve

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    config = Config.model_validate({"server": {"port": 0, **options.get("server", {})}})
    engine = FakeClient(**options.get("engine", {}))
    code = asyncio.run(serve(config, engine, ByteTokenizer(), _bind("127.0.0.1", 0), options.get("first_prompt")))
    print(f"stopped {engine.stopped}", flush=True)
    sys.exit(code)
