"""Signals and missing streams: a command ends at once, without a message, with all processes that it has started; it
runs without the streams that it doesn't need."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cli.main import VERBS

SIGNALLED = """
import os, sys
module, number = sys.argv[1:3]
del sys.argv[1:3]

class Signal:
    '''Sends it to this process when the module is about to be imported.'''
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Signal())
from headrace.cli.main import main
sys.exit(main())
"""
MODULES = [
    (["serve", "/nowhere"], "headrace.errors", signal.SIGINT),
    (["serve", "/nowhere"], "argparse", signal.SIGTERM),
    (["serve", "/nowhere"], "headrace.config", signal.SIGINT),
    (["serve", "/nowhere"], "headrace.hub.catalogue", signal.SIGTERM),
    (["serve", "{model}"], "fastapi", signal.SIGINT),
    (["serve", "{model}"], "uvicorn", signal.SIGTERM),
    (["serve", "{model}"], "headrace.tokenization.tokenizer", signal.SIGINT),
    (["generate", "{model}", "x"], "headrace.llm", signal.SIGINT),
    (["generate", "{model}", "x"], "tokenizers", signal.SIGTERM),
    (["chat", "{model}"], "headrace.cli.local_source", signal.SIGHUP),
    (["train-drafter", "{model}", "--method", "mtp", "--text", "x", "--out", "y"], "headrace.progress", signal.SIGINT),
    (["run", "{model}", "x"], "headrace.cli.local_source", signal.SIGTERM),
    (["run-batch", "x", "y"], "headrace.config", signal.SIGINT),
    (["list"], "headrace.hub.local_models", signal.SIGINT),
    (["rm", "x"], "headrace.hub.local_models", signal.SIGINT),
    (["ps"], "psutil", signal.SIGINT),
    (["top"], "headrace.cli.top_reading", signal.SIGINT),
    (["completion", "bash"], "headrace.cli.completion_words", signal.SIGINT),
    (["models"], "headrace.hub.catalogue", signal.SIGINT),
    (["pull", "smollm2"], "headrace.hub.catalogue", signal.SIGINT),
    (["cache"], "headrace.checkpoints.packed.cache", signal.SIGINT),
    (["cache"], "torch", signal.SIGTERM),
    (["doctor"], "headrace.plugins", signal.SIGINT),
    (["conformance", "sim"], "headrace.conformance.kit_runner", signal.SIGINT),
    (["plugin", "new", "some_name"], "importlib.metadata", signal.SIGTERM),
    (["program", "schema"], "headrace.lang.plan", signal.SIGTERM),
    (["program", "run", "x.py"], "headrace.cli.program_files", signal.SIGINT),
    (["route", "http://x:1"], "uvicorn", signal.SIGTERM),
    (["status"], "httpx", signal.SIGINT),
    (["simulate"], "headrace.route.simulation", signal.SIGINT),
    (["bench", "scheduler"], "headrace.bench.verb_scheduler", signal.SIGINT),
    (["bench", "offline", "{model}"], "headrace.bench.verb_offline", signal.SIGTERM),
]


def run(code: str, *arguments: object, closed: Sequence[int] = (), **given: object) -> subprocess.CompletedProcess[str]:
    def close() -> None:
        for number in closed:
            os.close(number)

    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, preexec_fn=close if closed else None, **given,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One that `generate` and `serve` begin to open."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("arguments", "module", "number"), MODULES, ids=str)
def test_a_signal_ends_the_command_silently_at_any_moment(
    arguments: list[str], module: str, number: int, model: Path
) -> None:
    done = run(SIGNALLED, module, int(number), *(argument.format(model=model) for argument in arguments))
    # What is loaded may have been said before.
    errors = [
        line for line in done.stderr.splitlines() if not line.startswith("INFO headrace.cli.serve_command: loading")
    ]
    assert (done.returncode, errors, done.stdout) == (128 + number, [], "")


def test_every_verb_is_interrupted() -> None:
    assert {arguments[0] for arguments, _, _ in MODULES} == set(VERBS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_child_processes_end_with_the_command(number: int) -> None:
    code = """
import os, subprocess, sys
from headrace.cli import main as command
def work(arguments):
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[int(sys.argv[2])])
    os.kill(os.getpid(), int(sys.argv[1]))
command._run = work
command.main()
"""
    reading, writing = os.pipe()
    try:
        try:
            done = run(code, int(number), writing, pass_fds=[writing])
        finally:
            os.close(writing)
        assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
        # The child had the last writing end.
        assert select.select([reading], [], [], 60)[0]
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    code = """
import os, signal
from headrace.cli import main as command
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
def work(arguments):
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGINT)
    print("here")
    return 3
command._run = work
raise SystemExit(command.main())
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "here\n", "")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_streams_are_opened_before_another_file_takes_their_number(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    code = """
import os, socket, sys
from headrace.cli import main as command
def work(arguments):
    ours, theirs = socket.socketpair()
    assert min(ours.fileno(), theirs.fileno()) > 2
    sys.stdin.read()
    print("told", file=sys.stderr, flush=True)
    assert all(os.get_inheritable(number) for number in range(3))
    open(sys.argv[1], "w").write("good")
    return 5
command._run = work
sys.exit(command.main())
"""
    done = run(code, tmp_path / "out", closed=closed, stdin=subprocess.DEVNULL)
    assert done.returncode == 5
    assert (tmp_path / "out").read_text() == "good"
    assert done.stdout == ""
    assert done.stderr == ("" if 2 in closed else "told\n")


@pytest.mark.parametrize("flushed", [True, False])
def test_output_that_cannot_be_written_is_an_error(flushed: bool) -> None:
    code = f"""
import sys
from headrace.cli import main as command
command._verb = lambda arguments: print("said", flush={flushed}) or 0
sys.exit(command.main())
"""
    done = run(code, closed=(1,))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nothing can be written: standard output is closed\n"


def test_characters_that_the_terminal_lacks_are_replaced() -> None:
    code = """
import sys
from headrace.cli import main as command
command._run = lambda arguments: print("caf\\u00e9 \\U0001f600", sys.stdin.read().isascii()) or 0
sys.exit(command.main())
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = run(code, env=environment, input="x\udcff".encode("utf-8", "surrogateescape").decode("latin-1"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf? ? False\n", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("OSError(28, 'No space left on device', '/some/file')", "/some/file: No space left on device"),
        ("PermissionError(13, 'Permission denied', '/x')", "/x: Permission denied"),
        ("MemoryError()", "out of memory"),
    ],
)
def test_errors_of_the_machine_are_one_line(error: str, said: str) -> None:
    code = f"""
import sys
from headrace.cli import main as command
def work(arguments): raise {error}
command._run = work
sys.exit(command.main())
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {said}\n")


def test_a_removed_working_directory(tmp_path: Path) -> None:
    code = """
import os, sys
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
sys.argv[1:] = ["models"]
from headrace.cli.main import main
sys.exit(main())
"""
    done = run(code, tmp_path / "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the working directory no longer exists (No such file or directory)")


def test_a_reader_that_closed_the_pipe() -> None:
    code = "import sys; from headrace.cli.main import main; sys.exit(main())"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "models"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
