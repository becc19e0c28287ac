"""Signals and deaths at bad moments: an exit code, an error for whoever waits, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from server_harness import _RUN, Server, running

pytestmark = pytest.mark.slow


def until(condition, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds} seconds"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def begin(served: Server, count: int = 1) -> list[str]:
    """Start long streams in threads; what the first receives."""
    lines: list[str] = []

    def read(into: list[str]) -> None:
        try:
            into.extend(served.lines(max_tokens=480))
        except httpx.HTTPError as error:
            into.append(type(error).__name__)

    for at in range(count):
        threading.Thread(target=read, args=(lines if at == 0 else [],), daemon=True).start()
    until(lambda: served.figures()["headrace_requests_running"] == count)
    return lines


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM], [signal.SIGINT]])
def test_while_the_model_loads(tiny_llama: Path, signals, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = json.dumps({"server": {"port": 0}, "device": {"platform": "cpu", "threads": 1}})
    process = subprocess.Popen([sys.executable, "-c", _RUN, config, str(tiny_llama)], stdout=subprocess.PIPE)
    until(lambda: bool(psutil.Process(process.pid).children()), 20)
    (engine,) = psutil.Process(process.pid).children()
    began = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    assert process.wait(5) == 0
    assert time.monotonic() - began < 2
    until(lambda: gone(engine.pid))
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_wait_for_an_engine_that_stands_still(tiny_llama: Path):
    with running(tiny_llama, drain_timeout=60) as served:
        engine = served.engine
        lines = begin(served, 2)
        engine.send_signal(signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(5) == 0
        assert time.monotonic() - began < 2
        until(lambda: gone(engine.pid))
        until(lambda: lines[-1:] == ["data: [DONE]"])
        assert json.loads(lines[-2][6:])["error"]["code"] == "shutting_down"


def test_a_killed_server_takes_even_a_stopped_engine_along(tiny_llama: Path):
    with running(tiny_llama) as served:
        engine = served.engine
        begin(served)
        engine.send_signal(signal.SIGSTOP)
        served.process.kill()
        until(lambda: gone(engine.pid))


def test_an_engine_killed_in_the_drain_ends_the_streams_and_the_server(tiny_llama: Path):
    with running(tiny_llama, drain_timeout=60) as served:
        served.engine.terminate()  # Ignored: the parent says when to end.
        lines = begin(served, 4)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.complete().status_code == 503)
        served.engine.kill()
        began = time.monotonic()
        assert served.process.wait(8) == 0
        assert time.monotonic() - began < 3
        until(lambda: lines[-1:] == ["data: [DONE]"])
        assert json.loads(lines[-2][6:])["error"]["code"] == "engine_unavailable"
