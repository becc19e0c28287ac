"""How the engine's processes are started: held signals, streams that are missing, and whose modules they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.spawn import python_module, spawn

TELL = """
import os, signal, socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
for number in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), number)  # As a terminal does, during imports
from headrace.engine.spawn import ignore_terminal_signals
ignore_terminal_signals()
for number in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), number)
link.sendall(f"{sys.argv[2]} {signal.pthread_sigmask(signal.SIG_BLOCK, [])}".encode())
"""


def test_signals_do_not_reach_it_while_it_imports_nor_later() -> None:
    process, link = spawn((sys.executable, "-c", TELL), "argument", stdin=subprocess.DEVNULL)
    with link:
        assert link.recv(1000) == b"argument set()"
    assert process.wait(300) == 0


def test_a_signal_that_comes_meanwhile_comes_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen

    def slow(*args: object, **options: object) -> object:
        import signal

        os.kill(os.getpid(), signal.SIGINT)
        return started(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        spawn((sys.executable, "-c", ""), stdin=subprocess.DEVNULL)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no -P")
def test_modules_of_the_working_directory_are_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "torch", "json", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    command = [*python_module("random"), "--help"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=300).returncode == 0


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_an_engine_answers_a_process_without_standard_streams(closed: tuple[int, ...], tmp_path: Path) -> None:
    code = f"""
import asyncio, os, sys
for number in {closed}: os.close(number)
from engine_fakes import ByteTokenizer, expected, make_request
from headrace.client.process_client import ProcessClient
from headrace.config import Config, ModelConfig
async def main():
    command = (sys.executable, "engine_fake_process.py")
    client = ProcessClient(Config(model=ModelConfig(model="fake")), ByteTokenizer(), command=command)
    await client.start()
    found = [i async for output in client.generate(make_request("hey", max_tokens=5, seed=0)) for i in output.token_ids]
    assert found == expected(tuple(b"hey"), 5)
    await client.close()
asyncio.run(main())
open({str(tmp_path / "out")!r}, "w").write("good")
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=False, timeout=300
    )
    assert (tmp_path / "out").read_text() == "good"
