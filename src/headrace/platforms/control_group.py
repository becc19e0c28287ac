"""Limits of the control groups (versions 1 and 2) that this process belongs to: its own group and all groups above it.

/proc/self/cgroup names the group within each hierarchy. /proc/self/mountinfo names the mount point of a hierarchy and
the group that is mounted there as the root (a container often sees its own group as the root).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_limits", "processor_limits"]

_LARGEST = 1 << 60
"""Version 1 writes "no limit" as a number near the largest possible one."""


def memory_limits(proc: Path) -> list[tuple[int, int]]:
    """(limit, used) in bytes of each group that has a limit. Page cache that can be reclaimed at once doesn't count as
    used."""
    found = []
    for group in _groups(proc, "memory"):
        limits = [_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        given = [limit for limit in limits if limit is not None and limit < _LARGEST]
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        if given:
            found.append((min(given), max(0, used - _reclaimable(group))))
    return found


def processor_limits(proc: Path) -> list[float]:
    """The number of processors that each limit allows."""
    found = []
    for group in _groups(proc, "cpu"):
        words = _text(group / "cpu.max").split() or [
            _text(group / "cpu.cfs_quota_us").strip(),
            _text(group / "cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[0]) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return found


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and of every visible group above it, in each hierarchy with the controller."""
    entries = [line.split(":", 2) for line in _text(proc / "self/cgroup").splitlines()]
    paths = {entry[1]: entry[2] for entry in entries if len(entry) == 3}
    for kind, root, mounted, names in _mounts(proc):
        unified = kind == "cgroup2"
        if not unified and controller not in names:
            continue
        path = paths.get("") if unified else next((p for n, p in paths.items() if controller in n.split(",")), None)
        if path is None:
            continue
        # Paths are relative to the mount's root. Of a group outside of it ("/..") only the root can be read.
        inside = path.removeprefix(root.rstrip("/")) if (path + "/").startswith(root.rstrip("/") + "/") else ""
        parts = [part for part in inside.split("/") if part]
        parts = [] if ".." in parts else parts
        yield from (mounted.joinpath(*parts[:length]) for length in range(len(parts), -1, -1))


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path, list[str]]]:
    """(file system, root, mount point, options) of the hierarchies. Format: proc(5), /proc/pid/mountinfo."""
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if len(place) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            yield kind[0], _plain(place[3]), Path(_plain(place[4])), kind[2].split(",")


def _plain(escaped: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)


def _reclaimable(group: Path) -> int:
    """Bytes of `inactive_file`. Version 1 has a total that includes the groups below."""
    fields = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    value = fields.get("total_inactive_file") or fields.get("inactive_file") or "0"
    return int(value) if value.strip().isdigit() else 0


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file or it contains `max`."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
