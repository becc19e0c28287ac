"""Inspects a machine without loading a driver or torch: its files, libraries by name, the installed torch build."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.types import DeviceInfo

__all__ = ["MachineProbe", "TorchBuild", "masked"]

_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "usr/local/lib")
_ASSIGNED = re.compile(r"^(\w+)\s*(?::[^=]*)?=\s*['\"](.+?)['\"]\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, as its version file describes it."""

    version: str
    runtimes: Mapping[str, str]
    """Name → version of each runtime that it was built for, with the names of `torch.version`."""


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """The file system, environment and libraries that a probe reads; tests use another root."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """For the variables with which a vendor's runtime hides devices. They are not part of `settings.Environment`: the
    runtime applies them in this process by itself, so a probe must count devices in the same way."""
    find_library: Callable[[str], str | None] = ctypes.util.find_library
    torch_folder: Callable[[], Path | None] = _torch_folder

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str | Path) -> str:
        """The stripped text of a file; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """Matching paths, sorted by the numbers in their names, then by name."""
        return sorted(self.root.glob(pattern), key=lambda p: ([int(n) for n in re.findall(r"\d+", p.name)], p.name))

    def may_open(self, path: str | Path) -> bool:
        return os.access(self.root / path, os.R_OK | os.W_OK)

    def has_library(self, name: str, *folders: str) -> bool:
        """Whether a library is installed; it is not loaded. `name`: as for the loader, `libfoo.so.1`. `folders`:
        further folders in which a vendor installs it."""
        if any(self.exists(f"{folder}/{name}") for folder in (*_LIBRARIES, *folders)):
            return True
        stem = name.removeprefix("lib").partition(".so")[0]
        return self.find_library(stem) is not None

    def torch(self) -> TorchBuild | None:
        """The installed torch; None if there is none."""
        folder = self.torch_folder()
        if folder is None:
            return None
        try:
            text = (folder / "version.py").read_text()
        except OSError:
            return None
        fields = dict(_ASSIGNED.findall(text))
        version = fields.pop("__version__", "unknown")
        return TorchBuild(version, {name: value for name, value in fields.items() if name != "git_version"})


def masked(devices: Sequence[DeviceInfo], mask: str | None, slices: str = "") -> list[DeviceInfo]:
    """The devices that a vendor's runtime shows under its mask, in its numbering.

    An entry of the mask is an index or the start of a `uuid`; the first entry that matches no device ends the list.
    None shows all. An entry that begins with `slices` names a part of a device.
    """
    if mask is None:
        return list(devices)
    shown: list[DeviceInfo] = []
    for entry in (part.strip().partition(".")[0] for part in mask.split(",")):
        found = [device for device in devices if _fits(device, entry)]
        if slices and entry.startswith(slices):
            found = [DeviceInfo(0, entry, 0)]
        if not found:
            break
        shown.append(DeviceInfo(len(shown), found[0].name, found[0].memory_bytes, found[0].details))
    return shown


def _fits(device: DeviceInfo, entry: str) -> bool:
    if entry.isdigit():
        return device.index == int(entry)
    return bool(entry) and dict(device.details).get("uuid", "").startswith(entry)
