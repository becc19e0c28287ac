"""Processes of tests that start at once: forks of one process that has imported what all of them import.

A fork runs a script as Python runs it, with arguments, directory, environment, streams and descriptors of its own, and
ends as any Python does. Left out are the start of the interpreter and the imports, which take nearly all of the time of
most processes of tests. Whatever a test shows of these two needs a real process: `subprocess.Popen`.

Also the forking process itself: `python fork_server.py LINK MODULE...`. It has no thread, and ends with its link; what
is still there of its forks ends with it where they ask for that (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

__all__ = ["ForkServer", "ForkedProcess", "popen_by_fork"]

_MESSAGE = 1 << 20
_FREE = 500
"""Descriptors from here on are not used by anything else while a fork gets its own."""


class ForkServer:
    """Starts processes. `Popen` can stand in for `subprocess.Popen` in the modules of the product that start them."""

    def __init__(self, *modules: str, folders: Sequence[Path] = ()) -> None:
        """`modules` are imported beforehand, `folders` are where scripts find theirs."""
        self._modules = modules
        self.running: dict[int, Sequence[str]] = {}
        """Process ids of those that nobody has waited for, with their commands."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, str(Path(__file__).resolve()), str(number), *modules]
            paths = os.pathsep.join(map(str, (*folders, *filter(None, [os.environ.get("PYTHONPATH")]))))
            environment = {**os.environ, "PYTHONPATH": paths}
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, env=environment)
        self._alone = threading.Lock()

    def close(self) -> None:
        self._link.close()
        self._process.wait()

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        """A fork, if the command is Python with a script or one of the modules; a real process for any other."""
        python, *rest = command
        if python == sys.executable:
            if rest[0].endswith(".py"):
                return ForkedProcess(self, command, rest, str(Path(rest[0]).resolve().parent), **options)
            at = rest.index("-m") if "-m" in rest[:2] else -1
            if at >= 0 and rest[at + 1] in self._modules:
                found = importlib.util.find_spec(rest[at + 1])
                assert found is not None
                assert found.origin is not None
                return ForkedProcess(self, command, [found.origin, *rest[at + 2 :]], None, **options)
        return subprocess.Popen(command, **options)

    def stand_in(self) -> SimpleNamespace:
        """In the place of the module `subprocess`."""
        return SimpleNamespace(**{**vars(subprocess), "Popen": self.Popen})

    def ask(self, asked: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._alone:
            socket.send_fds(self._link, [json.dumps(asked).encode()], list(descriptors))
            answer = self._link.recv(_MESSAGE)
        assert answer, "the forking process has ended"
        return json.loads(answer)


class ForkedProcess:
    """What tests and the product use of `subprocess.Popen`."""

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        script: Sequence[str],
        folder: str | None,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        cwd: str | Path | None = None,
        env: dict[str, str] | None = None,
        text: bool = False,
    ) -> None:
        self.args, self._server = command, server
        self.returncode: int | None = None
        self._alone = threading.Lock()
        ours: list[IO[Any] | None] = []
        theirs: list[int] = []
        opened: list[int] = []
        for number, given in enumerate((stdin, stdout, stderr)):
            if given == subprocess.PIPE:
                reading, writing = os.pipe()
                mine, its = (writing, reading) if number == 0 else (reading, writing)
                ours.append(os.fdopen(mine, ("w" if number == 0 else "r") + ("" if text else "b")))
                opened.append(its)
            elif given == subprocess.DEVNULL:
                opened.append(its := os.open(os.devnull, os.O_RDWR))
                ours.append(None)
            else:
                its = number if given is None else given
                ours.append(None)
            theirs.append(its)
        self.stdin, self.stdout, self.stderr = ours
        asked = {
            "script": list(script),
            "folder": folder,
            "numbers": [0, 1, 2, *pass_fds],
            "directory": str(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "blocked": [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "ignored": [int(one) for one in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_IGN],
            "parent": os.getpid(),
        }
        self.pid: int = server.ask(asked, [*theirs, *pass_fds])
        server.running[self.pid] = command
        for one in opened:
            os.close(one)
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        with self._alone:
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                self.returncode = self._server.ask({"wait": self.pid})
                del self._server.running[self.pid]
                os.close(self._ended)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            select.select([self._ended], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self) -> tuple[Any, Any]:
        """What is left of standard output and standard error, which must be short, once the process has ended."""
        if self.stdin is not None:
            self.stdin.close()
        found = [None if one is None or one.closed else one.read() for one in (self.stdout, self.stderr)]
        self.wait()
        for one in (self.stdout, self.stderr):
            if one is not None:
                one.close()
        return found[0], found[1]


def _serve(link: socket.socket) -> Callable[[], object]:
    """Fork for each message. Returns in forks alone: what they run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, _MESSAGE, 16)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        elif not (answer := os.fork()):
            link.close()
            return _become(asked, descriptors)
        for one in descriptors:
            os.close(one)
        link.send(json.dumps(answer).encode())


def _become(asked: dict[str, Any], descriptors: Sequence[int]) -> Callable[[], object]:
    numbers: list[int] = asked["numbers"]
    for one, number in zip([fcntl.fcntl(one, fcntl.F_DUPFD, _FREE) for one in descriptors], numbers, strict=True):
        os.dup2(one, number)
    _close_all_but(numbers)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number in (signal.SIGINT, signal.SIGHUP):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in asked["ignored"] else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    # Who asked counts as the parent of this process, as it would be.
    own, real_parent = os.getpid(), os.getppid
    os.getppid = lambda: asked["parent"] if os.getpid() == own else real_parent()
    sys.argv = asked["script"]
    if asked["folder"] is not None:
        sys.path[0] = asked["folder"]
    return lambda: runpy.run_path(sys.argv[0], run_name="__main__")


def popen_by_fork(before: Callable[[], object], command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen` for Python with a script, from a process that has imported what the script imports and has
    no second thread: the new one calls `before` and runs the script, which ends by `os._exit`."""

    def become() -> None:
        before()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # As Python does when it starts.
            signal.signal(number, signal.SIG_IGN)
        _close_all_but((0, 1, 2, *options.get("pass_fds", ())))
        sys.argv = list(command[1:])
        runpy.run_path(sys.argv[0], run_name="__main__")

    return subprocess.Popen(command, preexec_fn=become, **options)  # noqa: PLW1509


def _close_all_but(numbers: Sequence[int]) -> None:
    for one in map(int, os.listdir("/proc/self/fd")):
        if one not in numbers:
            with contextlib.suppress(OSError):  # The one that listed them.
                os.close(one)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))()
