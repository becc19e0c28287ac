"""The other ranks as rank 0 sees them: processes that it starts, sends every plan to, and watches until they end."""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.engine.channel import Channel
from headrace.engine.core_loop import LaunchedStep, StepRunner
from headrace.engine.ranks.rank_messages import Down, Loaded, Message, Opened, RunStep, Start, Stop, decode, encode
from headrace.engine.spawn import python_module, spawn
from headrace.engine.wire import from_wire
from headrace.errors import ConfigError, DeviceLost, HeadraceError
from headrace.types import StepPlan, StepResult

__all__ = ["COMMAND", "Followers", "GroupRunner"]

COMMAND = python_module("headrace.engine.ranks.follower")
_EXIT_TIMEOUT = 3.0
_LAST_WORDS = 1.0
"""Seconds that a rank gets to say why it ended."""
_PATIENCE = 60.0
"""Seconds of one wait; another follows."""


class Follower:
    """One other rank. A thread reads its messages; the kernel closes its end of the socket when it dies, however it dies."""

    def __init__(self, start: Start, command: Sequence[str], changed: threading.Condition) -> None:
        self.number = start.rank
        self.received: set[type[Message]] = set()
        self.error: HeadraceError | None = None
        """Why it is gone, None while it lives."""
        self._changed = changed
        self._process, link = spawn(command, stdin=subprocess.DEVNULL)
        self._channel = Channel(link)
        self._reader = threading.Thread(target=self._read, name=f"rank-{start.rank}", daemon=True)
        self._reader.start()
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        """Blocks until the kernel has taken all of it. Raises DeviceLost if the rank is gone."""
        if self._deliver(message):
            return
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None, _LAST_WORDS)
        raise DeviceLost(str(self.error or f"rank {self.number} does not listen"))

    def close(self) -> None:
        self._deliver(Stop())
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_EXIT_TIMEOUT)
        self._channel.close()

    def _deliver(self, message: Message) -> bool:
        """False if the other end is gone."""
        if not self._channel.send(encode(message)):
            while not self._channel.flush_for(_PATIENCE):
                pass
        return not self._channel.other_end_closed(0)

    def _read(self) -> None:
        """The reading thread."""
        error: HeadraceError | None = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while error is None and not self._channel.closed:
                for data in self._channel.receive(_PATIENCE):
                    message = decode(data)
                    if isinstance(message, Down):
                        error = from_wire(message.error)
                    with self._changed:
                        self.received.add(type(message))
                        self._changed.notify_all()
        if error is None:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            error = DeviceLost(f"rank {self.number} {how}")
        with self._changed:
            self.error = error
            self._changed.notify_all()


class Followers:
    """All ranks but 0; none where the model is on one device. Called by the engine's thread."""

    def __init__(
        self, config: str, size: int, index_of: Callable[[int], int], command: Sequence[str] = COMMAND
    ) -> None:
        """Chooses where the ranks meet, and starts nothing yet. `size` counts rank 0 too."""
        self.size = size
        self._config, self._index_of, self._command = config, index_of, command
        self._directory = _meeting_place() if size > 1 else None
        self._changed = threading.Condition()
        self._followers: list[Follower] = []

    @property
    def rendezvous(self) -> str:
        """Where the ranks meet, as `Platform.open` takes it; empty for one rank."""
        return "" if self._directory is None else f"file://{self._directory / 'meeting'}"

    @property
    def pids(self) -> list[int]:
        return [follower.pid for follower in self._followers]

    def start(self) -> None:
        level = logging.getLogger("headrace").getEffectiveLevel()
        for number in range(1, self.size):
            start = Start(self._config, number, self.size, self._index_of(number), self.rendezvous, level)
            self._followers.append(Follower(start, self._command, self._changed))

    def send(self, message: Message) -> None:
        """Raises DeviceLost if a rank is gone."""
        for follower in self._followers:
            follower.send(message)

    def await_all(self, kind: type[Opened] | type[Loaded]) -> None:
        """Wait until every rank has sent such a message. Raises the error of the first that ended instead."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._gone() is not None or all(kind in follower.received for follower in self._followers)
            )
            error = self._gone()
        if error is not None:
            raise error

    def why_gone(self, seconds: float) -> HeadraceError | None:
        """Why a rank has ended, waiting so long for that to be known; None if all live."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone() is not None, seconds)
            return self._gone()

    def lost(self) -> DeviceLost | None:
        """Why no step can be launched any more; None while every rank lives."""
        gone = self._gone()
        return None if gone is None else DeviceLost(str(gone))

    def runner(self, own: StepRunner) -> StepRunner:
        """A runner over all ranks: rank 0's own, if it is the only one."""
        return GroupRunner(own, self) if self.size > 1 else own

    def close(self) -> None:
        """End all ranks and wait for them. Twice is harmless."""
        for follower in self._followers:
            follower.close()
        self._followers.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _gone(self) -> HeadraceError | None:
        return next((follower.error for follower in self._followers if follower.error is not None), None)


def _meeting_place() -> Path:
    """A folder of this user's alone. Raises ConfigError."""
    try:
        return Path(tempfile.mkdtemp(prefix="headrace-"))
    except OSError as error:
        raise ConfigError(
            f"several ranks need a temporary folder: {error}; set TMPDIR to one that can be written"
        ) from None


class GroupRunner:
    """A `core_loop.StepRunner` over all ranks. Ranks that did not all do a step are out of step for good: every failure
    is a DeviceLost that names the rank."""

    def __init__(self, runner: StepRunner, followers: Followers) -> None:
        self._runner, self._followers = runner, followers

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Raises DeviceLost."""
        lost = self._followers.lost()
        if lost is not None:
            raise lost
        self._followers.send(RunStep.of(plan))
        try:
            return _LaunchedEverywhere(self._runner.launch(plan), self._explain)
        except Exception as error:
            raise self._explain(error) from error

    def recover(self) -> bool:
        """Never asked for: every failure is the loss of the device."""
        return False

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        """One rank cannot compute alone."""
        return "several ranks are not looked at again: start with one to see in which layer that begins"

    def _explain(self, error: Exception) -> DeviceLost:
        # A rank that ended takes the others with it: its own error says more than theirs.
        why = self._followers.why_gone(_LAST_WORDS if isinstance(error, DeviceLost) else 0)
        return DeviceLost(str(error) if why is None else f"{why} ({error})")


class _LaunchedEverywhere:
    def __init__(self, launched: LaunchedStep, explain: Callable[[Exception], DeviceLost]) -> None:
        self._launched, self._explain = launched, explain

    def done(self) -> bool:
        return self._launched.done()

    def result(self) -> StepResult:
        try:
            return self._launched.result()
        except Exception as error:
            raise self._explain(error) from error
