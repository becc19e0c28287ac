"""Signals and killed processes at bad moments: the exit code, errors for waiting clients, and no process left."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from server_harness import PATIENCE, Server, command, engine_of, running, until

pytestmark = pytest.mark.slow


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def draining(served: Server) -> bool:
    return served.http.get("/health").status_code == 503


def begin(served: Server, count: int = 1) -> list[str]:
    """Start long streams of a slow engine in threads, and wait until all have started; returns the first one's data."""
    received: list[list[str]] = [[] for _ in range(count)]

    def read(into: list[str]) -> None:
        try:
            into.extend(served.lines(max_tokens=480))
        except httpx.HTTPError as error:
            into.append(type(error).__name__)

    for into in received:
        threading.Thread(target=read, args=(into,), daemon=True).start()
    until(lambda: all(received))
    return received[0]


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM], [signal.SIGINT]])
def test_while_the_model_loads(tiny_llama: Path, signals, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = {"server": {"port": 0}, "device": {"platform": "cpu", "threads": 1}}
    process = subprocess.Popen(command(tiny_llama, config, at_once=600.0), stdout=subprocess.PIPE)
    try:
        engine = engine_of(process.pid)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)
        assert process.wait(PATIENCE) == 0
        until(lambda: gone(engine.pid))
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_wait_for_a_stopped_engine(tiny_llama: Path):
    with running(tiny_llama, limits={"exit": 600.0}, drain_timeout=600) as served, served.slow():
        engine = served.engine
        begin(served, 2)
        engine.send_signal(signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: draining(served))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0
        until(lambda: gone(engine.pid))


def test_a_stopped_engine_ends_with_a_killed_server(tiny_llama: Path):
    with running(tiny_llama) as served, served.slow():
        engine = served.engine
        begin(served)
        engine.send_signal(signal.SIGSTOP)
        served.process.kill()
        until(lambda: gone(engine.pid))


def test_an_engine_killed_in_the_drain_ends_the_streams_and_the_server(tiny_llama: Path):
    with running(tiny_llama, drain_timeout=600) as served, served.slow():
        served.engine.terminate()  # Ignored: the parent says when to end.
        lines = begin(served, 4)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: draining(served))
        served.engine.kill()
        assert served.process.wait(PATIENCE) == 0
        until(lambda: lines[-1:] == ["data: [DONE]"])
        assert json.loads(lines[-2][6:])["error"]["code"] == "engine_unavailable"
