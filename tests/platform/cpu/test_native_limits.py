"""The device with a limited address space: it allocates less, and an allocation that fails is an error with both
numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from headrace.errors import OutOfMemory
from headrace.platforms.cpu import mapping, native, native_team, tape_arena
from headrace.platforms.cpu.mapping import map_memory
from headrace.platforms.cpu.native_team import Team
from headrace.platforms.cpu.tape_arena import TapeArena

MIB = 1 << 20
needs_library = pytest.mark.skipif(native.missing() is not None, reason="needs the native library")


def test_a_steps_buffers_take_a_part_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_arena, "address_space", lambda: (4 * MIB + 8, 9 * MIB))
    arena = TapeArena()
    held = arena.tensor((MIB,), torch.uint8)
    assert held.sum() == 0
    with pytest.raises(OutOfMemory, match=r"exceed 1048576 bytes, at one of 256: lower max_num_batched_tokens.*ulimit"):
        arena.tensor((1,), torch.uint8)


def test_memory_that_the_system_refuses_is_an_error_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "address_space", lambda: (7 * MIB, 9 * MIB))
    wanted = f"cpu: no {1 << 60} bytes for a cache .*: {7 * MIB} of {9 * MIB} bytes are left; raise the limit"
    with pytest.raises(OutOfMemory, match=wanted):
        map_memory(1 << 60, "a cache")


@needs_library
@pytest.mark.parametrize(
    ("left", "shared"), [(None, 1 << 30), (1 << 40, 1 << 30), (3200 * MIB, 200 * MIB), (0, 64 * MIB)]
)
def test_the_team_shares_a_part_of_what_is_left(left: int | None, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Functions:
        def hr_team_new(self, threads: int, cpus: object, scratch: int, shared: int, spin: int) -> None:
            asked.append((threads, scratch, shared))

    library = replace(native.load(), functions=cast(Any, Functions()))
    monkeypatch.setattr(native_team, "address_space", lambda: None if left is None else (left, left))
    with pytest.raises(native_team.PlatformError, match=f"cannot start 2 threads.*need {shared + 128 * MIB} bytes"):
        Team(library, 2)
    assert asked == [(2, 64 * MIB, shared)]


@needs_library
@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer reserves all addresses"
)
def test_a_device_opens_and_records_within_two_gibibytes() -> None:
    code = """
import resource, torch
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.cpu.tape import TapeRecorder
from headrace.types import KVLayout, LayerKV
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))
device = NativeDevice(threads=1)
free, total = device.memory()
assert free < (2 << 30), free
device.alloc_kv(KVLayout((LayerKV(1, 16),), 16, "float32"), 4)
first, second = TapeRecorder(device.team), TapeRecorder(device.team)
assert first.arena.tensor((100, 100), torch.float32).sum() == 0
device.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
