"""The other ranks as rank 0 sees them: processes that it starts, tells every plan, and notices when they end."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.engine.core_loop import EngineCore, LaunchedStep, StepRunner, StepScheduler
from headrace.engine.ranks.rank_messages import Down, Loaded, Message, Opened, Start, Step, Stop, receive, send
from headrace.engine.wire import from_wire
from headrace.errors import DeviceLost, HeadraceError
from headrace.types import Delta, StepPlan, StepResult

__all__ = ["COMMAND", "ParallelCore", "ParallelRunner", "Ranks"]

COMMAND: tuple[str, ...] = (sys.executable, "-m", "headrace.engine.ranks.follower")
_EXIT_TIMEOUT = 3.0
_LAST_WORDS = 1.0
"""Seconds that a rank gets to say why it ended."""
_STDERR = 2


class Rank:
    """One other rank. A thread reads what it says; the kernel closes its end of the socket when it dies, however it dies."""

    def __init__(self, start: Start, command: Sequence[str], changed: threading.Condition) -> None:
        self.number = start.rank
        self.said: set[type[Message]] = set()
        self.error: HeadraceError | None = None
        """Why it is gone, None while it lives."""
        self._changed = changed
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Its output would mix with the answers of a command-line client: logs belong on stderr.
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=_STDERR
            )
        self._reader = threading.Thread(target=self._read, name=f"rank-{start.rank}", daemon=True)
        self._reader.start()
        self.tell(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Message) -> None:
        """Raises DeviceLost where it is gone."""
        try:
            send(self._socket, message)
        except OSError:
            with self._changed:
                self._changed.wait_for(lambda: self.error is not None, _LAST_WORDS)
            raise DeviceLost(str(self.error or f"rank {self.number} does not listen")) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            send(self._socket, Stop())
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_EXIT_TIMEOUT)
        self._socket.close()

    def _read(self) -> None:
        """The thread."""
        error: HeadraceError | None = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while error is None:
                message = receive(self._socket)
                if message is None:
                    break
                if isinstance(message, Down):
                    error = from_wire(message.error)
                with self._changed:
                    self.said.add(type(message))
                    self._changed.notify_all()
        if error is None:
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            error = DeviceLost(f"rank {self.number} {how}")
        with self._changed:
            self.error = error
            self._changed.notify_all()


class Ranks:
    """All other ranks. Called by the engine's thread."""

    def __init__(
        self, config: str, size: int, index_of: Callable[[int], int], command: Sequence[str] = COMMAND
    ) -> None:
        """Names where the ranks meet, and starts nothing yet."""
        self.size = size
        self._config, self._index_of, self._command = config, index_of, command
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.rendezvous = f"file://{self._directory / 'meeting'}"
        self._changed = threading.Condition()
        self._ranks: list[Rank] = []

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def start(self) -> None:
        for number in range(1, self.size):
            start = Start(self._config, number, self.size, self._index_of(number), self.rendezvous)
            self._ranks.append(Rank(start, self._command, self._changed))

    def tell(self, message: Message) -> None:
        """Raises DeviceLost where a rank is gone."""
        for rank in self._ranks:
            rank.tell(message)

    def await_all(self, kind: type[Opened] | type[Loaded]) -> None:
        """Until every rank has said so. Raises the error of the first that ended instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone() is not None or all(kind in rank.said for rank in self._ranks))
            error = self._gone()
        if error is not None:
            raise error

    def why_gone(self, seconds: float) -> HeadraceError | None:
        """Why a rank has ended, waiting so long for the news; None where all live."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone() is not None, seconds)
            return self._gone()

    def close(self) -> None:
        """End all ranks and wait for them. Twice is harmless."""
        for rank in self._ranks:
            rank.close()
        self._ranks.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _gone(self) -> HeadraceError | None:
        return next((rank.error for rank in self._ranks if rank.error is not None), None)


class ParallelRunner:
    """A `core_loop.StepRunner` over all ranks. Ranks that did not all do a step are out of step for good: every failure is a
    DeviceLost that names the rank."""

    def __init__(self, runner: StepRunner, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks

    def lost(self) -> DeviceLost | None:
        """Why no step can be launched any more; None while every rank lives."""
        gone = self._ranks.why_gone(0)
        return None if gone is None else DeviceLost(str(gone))

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Raises DeviceLost."""
        lost = self.lost()
        if lost is not None:
            raise lost
        self._ranks.tell(Step.of(plan))
        try:
            return _Launched(self._runner.launch(plan), self._lost)
        except Exception as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> DeviceLost:
        # A rank that ended takes the others with it: its own words say more than theirs.
        why = self._ranks.why_gone(_LAST_WORDS if isinstance(error, DeviceLost) else 0)
        return DeviceLost(str(error) if why is None else f"{why} ({error})")


class ParallelCore(EngineCore):
    """An engine that ends when a rank does, also while it has nothing to do."""

    def __init__(self, scheduler: StepScheduler, runner: ParallelRunner, max_num_seqs: int, block_size: int) -> None:
        super().__init__(scheduler, runner, max_num_seqs, block_size)
        self._lost = runner.lost

    def has_work(self) -> bool:
        """Work to be scheduled, or a loss to be told."""
        return super().has_work() or self._lost() is not None

    def step(self) -> list[Delta]:
        lost = None if self.flying else self._lost()
        if lost is not None:
            raise lost
        return super().step()


class _Launched:
    def __init__(self, launched: LaunchedStep, lost: Callable[[Exception], DeviceLost]) -> None:
        self._launched, self._lost = launched, lost

    def done(self) -> bool:
        return self._launched.done()

    def result(self) -> StepResult:
        try:
            return self._launched.result()
        except Exception as error:
            raise self._lost(error) from error
