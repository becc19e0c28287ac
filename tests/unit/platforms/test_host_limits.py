"""Memory and processors that control groups, `ulimit` and strict overcommit leave to this process, from a made-up
/proc."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.platforms.host import address_space, cpu_quota, host_memory

MIB = 1 << 20
WHOLE = host_memory(Path("/nowhere"))[1]


class Machine:
    """/proc and mounted hierarchies under one folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.folder = folder / "proc", folder
        (self.proc / "self").mkdir(parents=True)

    def in_groups(self, *lines: str) -> None:
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))

    def mounts(self, *entries: tuple[str, str, str, str]) -> None:
        """(file system, options, root, mount point)"""
        text = "24 1 0:22 / /sys rw shared:7 - sysfs sysfs rw\n"
        for kind, options, root, place in entries:
            text += f"30 24 0:27 {root} {self.folder / place} rw,nosuid shared:4 - {kind} none {options}\n"
        (self.proc / "self/mountinfo").write_text(text.replace("a b", "a\\040b"))

    def group(self, path: str, files: Mapping[str, object]) -> None:
        place = self.folder / path
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def unified(machine: Machine, path: str, root: str = "/") -> None:
    machine.in_groups(f"0::{path}")
    machine.mounts(("cgroup2", "rw", root, "fs"))


def test_without_any_group_it_is_the_machines(machine: Machine) -> None:
    free, total = host_memory(machine.proc)
    assert 0 < free <= total == WHOLE
    assert cpu_quota(machine.proc) is None
    unified(machine, "/")
    assert host_memory(machine.proc)[1] == WHOLE


def test_the_limit_of_its_own_nested_group(machine: Machine) -> None:
    unified(machine, "/system.slice/headrace.service")
    machine.group("fs/system.slice", {"memory.max": "max", "memory.current": 99 * MIB})
    machine.group("fs/system.slice/headrace.service", {"memory.max": 100 * MIB, "memory.current": 40 * MIB})
    assert host_memory(machine.proc) == (60 * MIB, 100 * MIB)


def test_the_least_of_its_groups_and_those_above(machine: Machine) -> None:
    unified(machine, "/a/b/c")
    machine.group("fs/a", {"memory.max": 90 * MIB, "memory.current": 80 * MIB})
    machine.group("fs/a/b", {"memory.max": 50 * MIB, "memory.current": 20 * MIB})
    machine.group("fs/a/b/c", {"memory.max": "max", "memory.high": "max", "memory.current": 20 * MIB})
    assert host_memory(machine.proc) == (10 * MIB, 50 * MIB)
    machine.group("fs/a/b/c", {"memory.high": 24 * MIB})
    assert host_memory(machine.proc) == (4 * MIB, 24 * MIB)
    machine.group("fs/a/b/c", {"memory.current": 30 * MIB})
    assert host_memory(machine.proc) == (0, 24 * MIB)


def test_page_cache_that_can_be_reclaimed_is_free(machine: Machine) -> None:
    unified(machine, "/x")
    machine.group("fs/x", {"memory.max": 100 * MIB, "memory.current": 90 * MIB})
    machine.group("fs/x", {"memory.stat": f"anon {10 * MIB}\nfile {80 * MIB}\ninactive_file {70 * MIB}"})
    assert host_memory(machine.proc) == (80 * MIB, 100 * MIB)
    machine.group("fs/x", {"memory.stat": "inactive_file much"})
    assert host_memory(machine.proc) == (10 * MIB, 100 * MIB)


def test_a_container_that_sees_its_own_group_as_the_root(machine: Machine) -> None:
    unified(machine, "/docker/0ff", root="/docker/0ff")
    machine.group("fs", {"memory.max": 100 * MIB, "memory.current": 1 * MIB, "cpu.max": "150000 100000"})
    assert host_memory(machine.proc) == (99 * MIB, 100 * MIB)
    assert cpu_quota(machine.proc) == 2
    unified(machine, "/docker/0ff/child", root="/docker/0ff")
    machine.group("fs/child", {"memory.max": 30 * MIB, "memory.current": 0, "cpu.max": "max 100000"})
    assert host_memory(machine.proc) == (30 * MIB, 30 * MIB)
    assert cpu_quota(machine.proc) == 2
    unified(machine, "/../../elsewhere")
    assert host_memory(machine.proc) == (99 * MIB, 100 * MIB)
    unified(machine, "/docker/0ffset", root="/docker/0ff")
    assert host_memory(machine.proc) == (99 * MIB, 100 * MIB)


def test_the_first_version(machine: Machine) -> None:
    machine.in_groups("4:memory:/jobs/7", "2:cpu,cpuacct:/jobs/7", "1:name=systemd:/x", "0::/y")
    machine.mounts(
        ("cgroup", "rw,memory", "/", "a b/memory"),
        ("cgroup", "rw,cpu,cpuacct", "/", "a b/cpu,cpuacct"),
        ("cgroup", "rw,name=systemd", "/", "a b/systemd"),
        ("cgroup2", "rw", "/", "a b/unified"),
    )
    unlimited = 9223372036854771712
    machine.group("a b/memory", {"memory.limit_in_bytes": unlimited, "memory.usage_in_bytes": 7 * MIB})
    machine.group("a b/memory/jobs", {"memory.limit_in_bytes": 64 * MIB, "memory.usage_in_bytes": 50 * MIB})
    machine.group("a b/memory/jobs", {"memory.stat": f"inactive_file 0\ntotal_inactive_file {40 * MIB}"})
    machine.group("a b/memory/jobs/7", {"memory.limit_in_bytes": unlimited, "memory.usage_in_bytes": 7 * MIB})
    assert host_memory(machine.proc) == (54 * MIB, 64 * MIB)
    assert cpu_quota(machine.proc) is None
    for place, quota in (("", -1), ("/jobs", 350000), ("/jobs/7", 800000)):
        machine.group(f"a b/cpu,cpuacct{place}", {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000})
    assert cpu_quota(machine.proc) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", None), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("", None), ("0 0", None)],
)
def test_a_processor_quota_is_rounded_up(machine: Machine, text: str, expected: int | None) -> None:
    unified(machine, "/x")
    machine.group("fs/x", {"cpu.max": text})
    assert cpu_quota(machine.proc) == expected


def test_the_least_processor_quota_counts(machine: Machine) -> None:
    unified(machine, "/x/y")
    machine.group("fs/x", {"cpu.max": "300000 100000"})
    machine.group("fs/x/y", {"cpu.max": "80000 20000"})
    assert cpu_quota(machine.proc) == 3


def test_limits_of_the_address_space(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limits[what], resource.RLIM_INFINITY))
    page = resource.getpagesize()
    (machine.proc / "self/statm").write_text("300 200 100 10 0 250 0\n")
    assert address_space(machine.proc) is None
    limits[resource.RLIMIT_AS] = 1000 * page
    assert address_space(machine.proc) == (700 * page, 1000 * page)
    limits[resource.RLIMIT_DATA] = 400 * page
    assert address_space(machine.proc) == (150 * page, 400 * page)
    assert host_memory(machine.proc) == (150 * page, 400 * page)
    limits[resource.RLIMIT_AS] = 200 * page
    assert address_space(machine.proc) == (0, 200 * page)


@pytest.mark.parametrize(("mode", "expected"), [("0", None), ("1", None), ("2", (30 << 10, 100 << 10))])
def test_strict_overcommit(machine: Machine, mode: str, expected: tuple[int, int] | None) -> None:
    machine.group("proc/sys/vm", {"overcommit_memory": mode})
    machine.group("proc", {"meminfo": "MemTotal: 9 kB\nCommitLimit:     100 kB\nCommitted_AS:     70 kB"})
    assert address_space(machine.proc) == expected
