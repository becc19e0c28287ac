"""Rank 0's handle of the other ranks: it starts their processes, sends them every plan, and monitors them."""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.engine.channel import Channel
from headrace.engine.core_loop import PendingStep, StepRunner
from headrace.engine.ranks.rank_messages import (
    BlocksRead,
    Loaded,
    Opened,
    RankFailed,
    RankMessage,
    RunStep,
    SampleStep,
    Start,
    StepDone,
    Stop,
    decode,
    encode,
)
from headrace.engine.ranks.step_patience import StepPatience, wait_patiently
from headrace.engine.spawn import python_module, spawn
from headrace.engine.wire import from_wire
from headrace.errors import ConfigError, DeviceLost, HeadraceError
from headrace.types import StepPlan, StepResult

__all__ = ["COMMAND", "Followers", "GroupRunner", "GroupStep"]

COMMAND = python_module("headrace.engine.ranks.follower")
_EXIT_TIMEOUT = 3.0
_ERROR_TIMEOUT = 1.0
"""Seconds that a rank has to report why it ended."""
_POLL_SECONDS = 60.0
"""Seconds of one wait; another follows."""
_SEND_SLICE = 0.5
"""Seconds of one wait for a rank to take a message."""
_SEND_TIMEOUT = 60.0
"""Seconds in which a rank must take a message: a thread of its own does nothing else."""


class Follower:
    """One other rank. A thread reads its messages. The kernel closes its end of the socket when it exits for any
    reason."""

    def __init__(self, start: Start, command: Sequence[str], changed: threading.Condition) -> None:
        self.number = start.rank
        self.received: set[type[RankMessage]] = set()
        self.error: HeadraceError | None = None
        """Why it ended; None while it runs."""
        self.told = False
        """It has sent the error itself."""
        self.results: dict[int, StepResult] = {}
        """By step, what it has sent and rank 0 has not read."""
        self.blocks: dict[int, tuple[bytes, ...]] = {}
        """The same of its parts of blocks."""
        self.block_bytes = 0
        """Of its part of a block, once it is loaded."""
        self._changed = changed
        self._process, link = spawn(command, stdin=subprocess.DEVNULL)
        self._channel = Channel(link)
        self._reader = threading.Thread(target=self._read, name=f"rank-{start.rank}", daemon=True)
        self._reader.start()
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: RankMessage) -> None:
        """Send a message; blocks until the kernel has accepted all of it. Raises DeviceLost if the rank has exited, or
        takes nothing."""
        if self._deliver(message, _SEND_TIMEOUT):
            return
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None, _ERROR_TIMEOUT)
        raise DeviceLost(str(self.error or f"rank {self.number} does not listen{self.standing()}"))

    def standing(self) -> str:
        """What the system says about a process that stands still; empty if it runs, or on other systems."""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return ": its process is stopped" if state in "Tt" else ""
        return ""

    def close(self) -> None:
        self._deliver(Stop(), _EXIT_TIMEOUT)
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_EXIT_TIMEOUT)
        self._channel.close()

    def _deliver(self, message: RankMessage, limit: float) -> bool:
        """Send a message. False if the other end has closed, or does not take it within so many seconds."""
        sent = self._channel.send(encode(message))
        for _ in range(int(limit / _SEND_SLICE)):  # Turns are counted: a machine that stands still takes none.
            if sent := sent or self._channel.flush_for(_SEND_SLICE):
                break
        return sent and not self._channel.other_end_closed(0)

    def _read(self) -> None:
        """Receive messages, on the reading thread."""
        error: HeadraceError | None = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while error is None and not self._channel.closed:
                for data in self._channel.receive(_POLL_SECONDS):
                    message = decode(data)
                    if isinstance(message, RankFailed):
                        error, self.told = from_wire(message.error), True
                    with self._changed:
                        if isinstance(message, StepDone):
                            self.results[message.step] = message.result()
                        elif isinstance(message, BlocksRead):
                            self.blocks[message.step] = message.blocks
                        elif isinstance(message, Loaded):
                            self.block_bytes = message.block_bytes
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
    """All ranks but 0; none if the model is on one device. Called by the engine's thread."""

    def __init__(
        self, config: str, size: int, index_of: Callable[[int], int], command: Sequence[str] = COMMAND
    ) -> None:
        """Chooses the rendezvous of the ranks, and starts no process yet. `size` includes rank 0."""
        self.size = size
        self._config, self._index_of, self._command = config, index_of, command
        self._directory = _rendezvous_folder() if size > 1 else None
        self._changed = threading.Condition()
        self._followers: list[Follower] = []
        self._patience = StepPatience()
        self._own_bytes = 0
        """Of rank 0's part of a block."""

    @property
    def rendezvous(self) -> str:
        """The rendezvous of the ranks in the format of `Platform.open`; empty for one rank."""
        return "" if self._directory is None else f"file://{self._directory / 'meeting'}"

    @property
    def pids(self) -> list[int]:
        return [follower.pid for follower in self._followers]

    def start(self) -> None:
        level = logging.getLogger("headrace").getEffectiveLevel()
        for number in range(1, self.size):
            start = Start(self._config, number, self.size, self._index_of(number), self.rendezvous, level)
            self._followers.append(Follower(start, self._command, self._changed))

    def send(self, message: RankMessage) -> None:
        """Send a message to all ranks. Raises DeviceLost if a rank has exited."""
        for follower in self._followers:
            follower.send(message)

    def send_step(self, plan: StepPlan) -> None:
        """Send a plan to all ranks, with the part of each of the blocks to load. Raises DeviceLost."""
        message, at = RunStep.of(plan), self._own_bytes
        for follower in self._followers:
            end = at + follower.block_bytes
            follower.send(message.loading(plan.loads, slice(at, end)) if plan.loads else message)
            at = end

    def share_blocks(self, own: int) -> tuple[int, ...]:
        """Bytes of each rank's part of a block, in order; `own`: of rank 0's. All ranks are loaded."""
        self._own_bytes = own
        return own, *(follower.block_bytes for follower in self._followers)

    def whole_blocks(self, step: int, own: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
        """The blocks that a step has read, of which rank 0 has these parts; waits for those of the other ranks. Raises
        the error of the first rank that has ended, and DeviceLost if one hangs."""
        limit = self._patience.limit(1)
        with self._changed:
            waited = wait_patiently(
                self._changed,
                lambda: self._first_error() is not None or all(step in one.blocks for one in self._followers),
                limit,
            )
            error = self._first_error()
            if error is not None or waited is None:
                raise error or DeviceLost(self._hanging(step, limit))
            parts = [one.blocks.pop(step) for one in self._followers]
        return [np.frombuffer(b"".join(block), np.uint8) for block in zip(own, *parts, strict=True)]

    def await_all(self, kind: type[Opened] | type[Loaded]) -> None:
        """Wait until every rank has sent such a message. Raises the error of the first that ended instead."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._first_error() is not None or all(kind in follower.received for follower in self._followers)
                )
            )
            error = self._first_error()
        if error is not None:
            raise error

    def wait_for_error(self, seconds: float) -> HeadraceError | None:
        """Why a rank has ended, after waiting up to so many seconds for it; None if all run."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_error() is not None, seconds)
            return self._first_error()

    def lost(self) -> DeviceLost | None:
        """Why no step can be launched any more; None while every rank runs."""
        error = self._first_error()
        return None if error is None else DeviceLost(str(error))

    def explain(self, error: Exception) -> DeviceLost:
        """A failure of rank 0, with why another rank has ended, if one has: then the others fail, too, and its own
        error is the most useful one."""
        lost = isinstance(error, DeviceLost) and self.size > 1
        why = self.wait_for_error(_ERROR_TIMEOUT if lost else 0)
        return DeviceLost(str(error) if why is None else f"{why} ({error})")

    def has_result(self, step: int) -> bool:
        """Whether `result` would return or raise at once."""
        return self._first_error() is not None or any(step in follower.results for follower in self._followers)

    def result(self, step: int, rows: int, check: Callable[[], None]) -> StepResult:
        """The result of a step that another rank computes; waits for it. `rows`: as `rows_of` counts them. `check`
        raises what has ended rank 0's part: then no result comes. Raises the error of the first rank that has ended,
        and DeviceLost if one hangs."""
        limit = self._patience.limit(rows)

        def happened() -> bool:
            if self.has_result(step):
                return True
            check()
            return False

        with self._changed:
            waited = wait_patiently(self._changed, happened, limit)
            found = [one.results.pop(step) for one in self._followers if step in one.results]
            error = self._first_error()
        if waited is not None and found:
            self._patience.waited(waited, rows)
            return found[0]
        raise error or DeviceLost(self._hanging(step, limit))

    def _hanging(self, step: int, limit: float) -> str:
        standing = [f"rank {one.number}{text}" for one in self._followers if (text := one.standing())]
        who = ", ".join(standing) or f"one of the ranks 0 to {self.size - 1} hangs"
        before = f"the longest wait so far was {self._patience.longest:.1f} s"
        return f"step {step} gave no result within {limit:.0f} s ({before}): {who}"

    def runner(self, own: StepRunner) -> StepRunner:
        """A runner over all ranks: rank 0's own, if it is the only one."""
        return GroupRunner(own, self) if self.size > 1 else own

    def close(self) -> None:
        """End all ranks and wait for them. Calling it twice is harmless."""
        for follower in self._followers:
            follower.close()
        self._followers.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _first_error(self) -> HeadraceError | None:
        """Of several, that of a rank which has ended without a word: the others failed because of it."""
        errors = [(follower.told, follower.error) for follower in self._followers if follower.error is not None]
        return min(errors, key=lambda one: one[0])[1] if errors else None


def _rendezvous_folder() -> Path:
    """Create a folder that only this user can read. Raises ConfigError."""
    try:
        return Path(tempfile.mkdtemp(prefix="headrace-"))
    except OSError as error:
        raise ConfigError(
            f"several ranks need a temporary folder: {error}; set TMPDIR to one that can be written"
        ) from None


class GroupRunner:
    """A `core_loop.StepRunner` over all ranks. If a step fails on one rank, the ranks can no longer be in step: every
    failure is a DeviceLost that names the rank."""

    def __init__(self, runner: StepRunner, followers: Followers) -> None:
        self._runner, self._followers = runner, followers

    def launch(self, plan: StepPlan) -> PendingStep:
        """Raises DeviceLost."""
        return self._launch(plan)

    def _launch(self, plan: StepPlan) -> GroupStep:
        lost = self._followers.lost()
        if lost is not None:
            raise lost
        self._followers.send_step(plan)
        try:
            return GroupStep(plan, self._runner.launch(plan), self._followers)
        except Exception as error:
            raise self._followers.explain(error) from error

    def recover(self) -> bool:
        """Never called: every failure is the loss of the device."""
        return False

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        """One rank cannot compute alone."""
        return "several ranks are not looked at again: start with one to see in which layer that begins"


class GroupStep:
    """A step in flight on all ranks."""

    def __init__(self, plan: StepPlan, launched: PendingStep, followers: Followers) -> None:
        self._plan, self._launched, self._followers = plan, launched, followers
        self._own: StepResult | None = None

    def sample(self) -> None:
        """The other ranks launch the second part, too."""
        self._followers.send(SampleStep.of(self._plan))
        try:
            self._launched.sample()
        except Exception as error:
            raise self._followers.explain(error) from error

    def done(self) -> bool:
        return self._launched.done()

    def own(self) -> StepResult:
        """Rank 0's part of the result. Raises DeviceLost."""
        if self._own is None:
            try:
                self._own = self._launched.result()
            except Exception as error:
                raise self._followers.explain(error) from error
        return self._own

    def result(self) -> StepResult:
        found = self.own()
        if found.stored is None:
            return found
        try:
            return replace(found, stored=self._followers.whole_blocks(self._plan.step, found.stored))
        except Exception as error:
            raise self._followers.explain(error) from error
