"""Memory and processor time of a process and its children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from headrace.bench.process_cost import cost, find_server
from headrace.errors import ConfigError

_HOLD = "import sys; held = bytes([1]) * (64 << 20); held = None; print('ready', flush=True); sys.stdin.read()"
_PARENT = (
    f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {_HOLD!r}], stdin=subprocess.PIPE); "
    "sys.stdin.read(); child.communicate()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process's peak")
def test_past_memory_peaks_of_children_count() -> None:
    command = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        found = cost(parent.pid)
        resident = psutil.Process(parent.pid).memory_info().rss
        parent.communicate()
    assert found.peak_bytes > resident + (64 << 20)
    assert found.cpu_seconds > 0


def test_a_missing_process_is_named() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(ConfigError, match=f"process {gone.pid}.*--server-pid"):
        cost(gone.pid)


def test_the_listening_process_is_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        assert find_server(f"http://127.0.0.1:{port}/") == os.getpid()
        assert find_server(f"http://localhost:{port}") == os.getpid()
        assert find_server(f"http://192.0.2.1:{port}") is None, "that is another machine"
    assert find_server(f"http://127.0.0.1:{port}") is None, "nobody listens any more"
