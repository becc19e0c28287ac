"""What is found out about a machine without loading a driver or torch: files, libraries by name, the installed torch build."""

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
    """The torch that is installed, from its own version file."""

    version: str
    runtimes: Mapping[str, str]
    """Name → version of each runtime that it was built for, as `torch.version` names them."""


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """Where a probe looks; tests give it another root."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """For the variables by which a vendor's own runtime hides devices. They are that runtime's and none of `config.Environment`'s: it
    obeys them in this process whatever we think, so probing has to count as it does."""
    find_library: Callable[[str], str | None] = ctypes.util.find_library
    torch_folder: Callable[[], Path | None] = _torch_folder

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str | Path) -> str:
        """Stripped; empty where there is nothing to read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """In the order of the numbers in their names, then of the names."""
        return sorted(self.root.glob(pattern), key=lambda p: ([int(n) for n in re.findall(r"\d+", p.name)], p.name))

    def may_open(self, path: str | Path) -> bool:
        return os.access(self.root / path, os.R_OK | os.W_OK)

    def has_library(self, name: str, *folders: str) -> bool:
        """`name` as the loader knows it, `libfoo.so.1`; `folders`: where else a vendor puts it. Not loaded."""
        if any(self.exists(f"{folder}/{name}") for folder in (*_LIBRARIES, *folders)):
            return True
        stem = name.removeprefix("lib").partition(".so")[0]
        return self.find_library(stem) is not None

    def torch(self) -> TorchBuild | None:
        """None where torch is not installed."""
        folder = self.torch_folder()
        if folder is None:
            return None
        try:
            text = (folder / "version.py").read_text()
        except OSError:
            return None
        said = dict(_ASSIGNED.findall(text))
        version = said.pop("__version__", "unknown")
        return TorchBuild(version, {name: value for name, value in said.items() if name != "git_version"})


def masked(devices: Sequence[DeviceInfo], mask: str | None, slices: str = "") -> list[DeviceInfo]:
    """The devices that a vendor's runtime shows under its mask, numbered as it numbers them: by position or by the beginning of
    their `uuid`; the first entry that fits no device ends the list. None: all. Entries that begin with `slices` name a part of a
    device."""
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
