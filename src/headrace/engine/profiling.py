"""Profiles of the engine's steps by torch.profiler, as trace files that chrome://tracing and Perfetto read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError, InvalidRequest
from headrace.kernels.spec import TorchTensors
from headrace.platforms.interface import Device

__all__ = ["ProfileReport", "StepProfiler", "profiler_of"]

_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class ProfileReport:
    file: str
    steps: int
    """Steps that it shows."""


class StepProfiler:
    """Thread: that of the engine's loop, in which a profile begins and ends. Files are written by a thread of their
    own, because a long one takes seconds."""

    def __init__(self, refusal: str = "") -> None:
        """`refusal`: why there are no profiles; empty: there are."""
        self._refusal = refusal
        self._running: Any = None
        self._file = Path()
        self._number = 0
        self._left = self._done = 0
        self._writer: _Writer | None = None

    def start(self, folder: Path, steps: int) -> None:
        """Begin a profile that ends by itself after so many steps. Raises InvalidRequest if one runs or the platform
        has none, and ConfigError for a folder that cannot be written."""
        if self._refusal:
            raise InvalidRequest(self._refusal, code="not_supported")
        if self._running is not None:
            raise InvalidRequest("a profile runs already: end it by /stop_profile", code="profile_running")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--profile-dir {folder}: {error.strerror or error}: no profile can be written") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"--profile-dir {folder}: it cannot be written by this user")
        # Late: the profiler's modules are needed by nobody else.
        import torch.profiler

        self._number += 1
        self._file = folder / f"headrace-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self._number}.json.gz"
        self._left, self._done, self._writer = steps, 0, None
        activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        profile = torch.profiler.profile(activities=activities)
        profile.start()
        self._running = profile

    def stop(self, done: Callable[[ProfileReport | HeadraceError], None]) -> None:
        """End the profile; `done` is called once its file is complete, on another thread. Raises InvalidRequest if
        there is none."""
        if self._running is not None:
            self._end()
        writer, self._writer = self._writer, None
        if writer is None:
            raise InvalidRequest("no profile runs: begin one by /start_profile", code="no_profile")
        threading.Thread(target=lambda: done(writer.result()), name="profile", daemon=True).start()

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Marks a part of a step in the profile, if one runs."""
        if self._running is None:
            return _NOTHING
        import torch.profiler

        found: AbstractContextManager[Any] = torch.profiler.record_function(f"headrace: {name}")
        return found

    def passed(self) -> None:
        """A step has been made."""
        if self._running is not None:
            self._done, self._left = self._done + 1, self._left - 1
            if not self._left:
                self._end()

    def _end(self) -> None:
        profile, self._running = self._running, None
        failed = None
        try:
            profile.stop()
        except Exception as error:  # No step ends for it.
            failed = error
        self._writer = _Writer(profile, ProfileReport(str(self._file), self._done), failed)


class _Writer:
    """Writes one profile; the file appears when it is complete."""

    def __init__(self, profile: Any, report: ProfileReport, failed: Exception | None) -> None:
        self._profile, self._report, self._failed = profile, report, failed
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._write, name="profile-file", daemon=True)
        self._thread.start()

    def result(self) -> ProfileReport | HeadraceError:
        """Waits for the file."""
        self._thread.join()
        return self._error or self._report

    def _write(self) -> None:
        target = Path(self._report.file)
        # torch compresses what ends in .gz.
        partial = target.with_name(f".{target.name}")
        try:
            if self._failed is not None:
                raise self._failed
            self._profile.export_chrome_trace(str(partial))
            partial.replace(target)
        except Exception as error:
            partial.unlink(missing_ok=True)
            self._error = ConfigError(f"the profile {target} cannot be written: {type(error).__name__}: {error}")


def profiler_of(device: Device, platform: str) -> StepProfiler:
    """What profiles the steps of a device."""
    if device.extension(TorchTensors) is not None:
        return StepProfiler()
    return StepProfiler(f"platform {platform} does not compute with torch, so torch.profiler shows nothing of it")
