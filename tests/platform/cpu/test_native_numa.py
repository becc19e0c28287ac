"""The placement of packed weights on a machine with several nodes, which the test's files describe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import linear_weights as make
import numpy as np
import pytest
import torch
from linear_weights import MAKERS

from headrace.kernels.linear.cpu_pack import PackedWeight, pack
from headrace.platforms.cpu import numa
from headrace.platforms.cpu.numa import BLOCK, Placement
from headrace.platforms.cpu.weight_arena import WeightArena
from headrace.quant.weights import dense, stack
from headrace.types import Bucket

Moved = list[tuple[int, int, tuple[int, ...]]]


def machine(root: Path, *cpulists: str) -> Path:
    for node, text in enumerate(cpulists):
        (root / f"node{node}").mkdir()
        (root / f"node{node}" / "cpulist").write_text(text + "\n")
    (root / "nodes_are_not_all_here").mkdir()
    return root


def recorder() -> tuple[Moved, Any]:
    moved: Moved = []

    def move(blocks: Sequence[tuple[int, int]], cpus: Sequence[int]) -> None:
        moved.extend((address, size, tuple(cpus)) for address, size in blocks)

    return moved, move


def large(rows: int = 4096, columns: int = 1024) -> PackedWeight:
    """bfloat16 in two parts of unequal length."""
    cut = rows // 4
    parts = [dense(torch.zeros(n, columns, dtype=torch.bfloat16)) for n in (cut, rows - cut)]
    return pack(stack(parts), "int8", WeightArena().take)


def test_nodes_and_neighbours(tmp_path: Path) -> None:
    assert numa.nodes(tmp_path) == {}
    root = machine(tmp_path, "0-1,4", "2-3,5", "")
    assert numa.nodes(root) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1, 5: 1}
    assert numa.by_node([0, 2, 4, 5, 1], root) == [0, 4, 1, 2, 5]
    assert numa.by_node([3, 1], tmp_path / "none") == [3, 1]


def test_each_block_goes_to_the_node_that_reads_its_middle(tmp_path: Path) -> None:
    root, (moved, move) = machine(tmp_path, "0-2", "3-7"), recorder()
    cpus, weight = [0, 1, 2, 3, 4], large()
    assert Placement(cpus, root, move).place([("linear", weight)]) == sum(size for _, size, _ in moved)
    total = sum(len(part.panels) for part in weight.parts)
    seen, before = 0, 0
    for part in weight.parts:
        start, each = part.panels.data_ptr(), part.panels.shape[1]
        for address, size, threads in moved:
            middle = address + size // 2
            if start <= middle < start + part.panels.numel():
                panel = before + (middle - start) // each
                thread = next(t for t in range(5) if total * t // 5 <= panel < total * (t + 1) // 5)
                assert threads == ((0, 1, 2) if thread < 3 else (3, 4))
                seen += 1
        before += len(part.panels)
    assert seen >= 3
    assert {threads for _, _, threads in moved} == {(0, 1, 2), (3, 4)}
    assert all(address % BLOCK == 0 or size < BLOCK for address, size, _ in moved)


def test_gate_and_up_of_the_same_rows_lie_together(tmp_path: Path) -> None:
    root, (moved, move) = machine(tmp_path, "0", "1"), recorder()
    halves = [dense(torch.zeros(4096, 1024, dtype=torch.bfloat16)) for _ in range(2)]
    weight = pack(stack(halves), "int8", WeightArena().take)
    Placement([0, 1], root, move).place([("gated_linear", weight)])
    for part in weight.parts:
        start, size = part.panels.data_ptr(), part.panels.numel()
        inside = {a: threads for a, n, threads in moved if start <= a and a + n <= start + size}
        assert {threads for a, threads in inside.items() if a + BLOCK <= start + size // 2} == {(0,)}
        assert {threads for a, threads in inside.items() if a >= start + size // 2} == {(1,)}


def test_nothing_of_another_storage_is_touched(tmp_path: Path) -> None:
    root, (moved, move) = machine(tmp_path, "0", "1"), recorder()
    arena = WeightArena(1 << 20)
    weights = [pack(MAKERS["q8_0"](np.random.default_rng(i), 700, 2048), "int8", arena.take) for i in range(3)]
    Placement([0, 1], root, move).place([("linear", weight) for weight in weights])
    storages = [part.panels.untyped_storage() for weight in weights for part in weight.parts]
    bounds = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]
    assert moved
    for address, size, _ in moved:
        assert address % 4096 == 0
        assert any(low <= address and address + size <= high for low, high in bounds)
    assert len({address for address, _, _ in moved}) == len(moved)


def test_experts_are_spread_and_embeddings_stay(tmp_path: Path) -> None:
    root, (moved, move) = machine(tmp_path, "0", "1"), recorder()
    placement, weight = Placement([0, 1], root, move), large(8192)
    assert placement.place([("embedding", weight)]) == 0
    placement.place([("moe", weight)])
    counts = [sum(threads == (cpu,) for _, _, threads in moved) for cpu in (0, 1)]
    assert min(counts) >= 3
    assert abs(counts[0] - counts[1]) <= 1
    assert placement.place([("moe", weight), ("linear", weight)]) == 0  # once


@pytest.mark.parametrize(
    ("cpulists", "cpus"), [(("0-3",), [0, 1]), ((), [0, 1]), (("0", "1"), []), (("0", "2"), [0, 1])]
)
def test_nothing_happens_elsewhere(tmp_path: Path, cpulists: tuple[str, ...], cpus: list[int]) -> None:
    """One node, no reported node, threads that aren't pinned, and one on an unknown node."""
    moved, move = recorder()
    assert Placement(cpus, machine(tmp_path, *cpulists), move).place([("linear", large(512))]) == 0
    assert not moved


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_moved_weights_hold_what_they_held(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    cpus = cpus * 2 if len(cpus) == 1 else cpus[:2]
    arena, rng = WeightArena(), np.random.default_rng(2)
    weights = [pack(MAKERS[name](rng, 900, 4096), "int8", arena.take) for name in ("q8_0", "q4_k", "bfloat16")]
    loaded = PackedWeight.load(*_copied(weights[0]))
    before = [part.panels.clone() for weight in (*weights, loaded) for part in weight.parts]
    mine = os.sched_getaffinity(0)
    placement = Placement(cpus, machine(tmp_path, str(cpus[0]), str(cpus[1]) if cpus[1] != cpus[0] else "63"))
    placement._nodes, placement._cpus = [0, 1], {0: [cpus[0]], 1: [cpus[1]]}
    assert placement.place([("linear", weight) for weight in (*weights, loaded)]) > 4 * BLOCK
    after = [part.panels for weight in (*weights, loaded) for part in weight.parts]
    assert all(map(torch.equal, after, before))
    assert os.sched_getaffinity(0) == mine


def _copied(weight: PackedWeight) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """As read from disk: all buffers in one piece of memory, at multiples of 64 bytes."""
    header, buffers = weight.dump()
    memory, at, pieces = WeightArena(0).take(sum(-(-b.numel() // 64) * 64 for b in buffers)), 0, []
    for buffer in buffers:
        flat = buffer.flatten().view(torch.uint8)
        memory[at : at + len(flat)] = flat
        pieces.append(memory[at : at + len(flat)])
        at += -(-len(flat) // 64) * 64
    return header, pieces


def test_what_the_system_keeps_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def refuse(address: Any, size: Any, advice: int) -> int:
        calls.append(size.value)
        return -1

    monkeypatch.setattr(numa.ctypes, "CDLL", lambda name: SimpleNamespace(madvise=refuse))
    held = torch.arange(4096, dtype=torch.uint8)
    numa._rewrite([(held.data_ptr(), 4096)])
    assert calls == [4096]
    assert torch.equal(held, torch.arange(4096, dtype=torch.uint8))


def test_a_step_is_placed_when_it_is_recorded() -> None:
    native = pytest.importorskip("headrace.platforms.cpu.native")
    if native.missing() is not None:
        pytest.skip("needs the native library")
    from headrace.platforms.cpu.native_device import NativeDevice

    device, asked = NativeDevice(threads=1), cast(list[Any], [])
    device._placement = cast(Any, SimpleNamespace(place=asked.extend))
    weight = MAKERS["q8_0"](np.random.default_rng(3), 64, 64)
    linear = device._table["linear"]

    def step(kv: Any, inputs: Any) -> Any:
        return kv, {"y": linear(inputs["x"], weight)}

    executable = device.compile(step, Bucket(4, 1, 1, 1))
    x = make.normal(np.random.default_rng(4), 4, 64)
    for _ in range(2):
        executable(None, {"x": x})
    assert [name for name, _ in asked] == ["linear"]
    assert asked[0][1] is weight.prepared["cpu:packed:int8"]
    device.close()
