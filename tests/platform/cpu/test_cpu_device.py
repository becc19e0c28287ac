"""The CPU platform: options, capabilities, float32 copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.config import Config
from headrace.errors import PlatformError
from headrace.kernels import random
from headrace.kernels.registry import OPS, bind, binding, pack
from headrace.kernels.weight import Weight
from headrace.platforms.cpu import CpuPlatform
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.cpu.float32_copies import Float32Copies
from headrace.platforms.host import host_memory, host_name, physical_cores
from headrace.resolution import ModelFacts, resolve
from headrace.types import LayerKV

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NATIVE", "0")


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    made = CpuPlatform().open(0, {})
    assert isinstance(made, CpuDevice)
    yield made
    made.close()


def test_the_platform_lists_the_machine() -> None:
    score, reason = CpuPlatform().probe()
    (info,) = CpuPlatform().devices()
    assert score > 0
    assert "cores" in reason
    assert info.index == 0
    assert info.memory_bytes == host_memory()[1]


@pytest.mark.parametrize(
    ("index", "options", "said"),
    [
        (1, {}, "index 0, but 1 was requested"),
        (0, {"thread": 1}, "unknown option 'thread'; there are threads, dtype, float32_copies, rank"),
        (0, {"threads": 0}, "option threads is 0"),
        (0, {"threads": "2"}, "option threads is '2'"),
        (0, {"float32_copies": -1}, "option float32_copies is -1"),
    ],
)
def test_wrong_options_are_named(index: int, options: dict[str, object], said: str) -> None:
    with pytest.raises(PlatformError, match=said):
        CpuPlatform().open(index, options)


def test_threads_are_set_where_the_work_runs_and_nowhere_else() -> None:
    before = torch.get_num_threads()
    device = CpuPlatform().open(0, {"threads": before + 1})
    executable = device.compile(lambda kv, i: (kv, {"n": torch.tensor(torch.get_num_threads())}), None)
    try:
        assert device.get(executable(None, {})[1]["n"]).result() == before + 1
    finally:
        device.close()
        torch.set_num_threads(before)


def test_configuration_resolves_to_exact_arithmetic(device: CpuDevice) -> None:
    facts = ModelFacts((LayerKV(1, 8),), 64, 100, "quantized")
    resolved, _ = resolve(Config(), device.capabilities(), facts, device.memory()[0])
    if "quantized" not in device.capabilities().dtypes:
        assert (resolved.dtype, resolved.kv_layout.dtype, resolved.kv_layout.block_size) == ("float32", "float32", 16)
    assert device.capabilities().deterministic


def test_every_operator_is_bound(device: CpuDevice) -> None:
    bound = binding(device)
    assert set(bound.callables) == {spec.name for spec in OPS}
    for seed in range(4):
        for spec in OPS:
            bound.callables[spec.name](**spec.generate(np.random.default_rng(seed), CPU, "float32"))


def test_a_copy_gives_the_same_bits(device: CpuDevice) -> None:
    rng = np.random.default_rng(0)
    ops, weight = bind(device), random.weight(rng, 70, 50, CPU, "bfloat16", bias=True)
    x, ids = random.normal(rng, 5, 50, device=CPU), torch.tensor([3, 1], dtype=torch.int32)
    before = ops.linear(x, weight), ops.embedding(ids, table=weight, scale=2.0)
    pack(ops, "linear", weight)
    assert weight.prepared
    weight.unpack = None  # type: ignore[assignment]
    assert torch.equal(ops.linear(x, weight=weight), before[0])
    assert torch.equal(ops.embedding(ids, weight, 2.0), before[1])


def test_copies_keep_to_their_budget() -> None:
    rng = np.random.default_rng(0)
    weights = [random.weight(rng, 10, 10, CPU, "bfloat16", bias=False) for _ in range(3)]
    copies = Float32Copies(2 * 400)
    for weight in (weights[0], *weights):
        copies.pack(weight)
    assert [bool(weight.prepared) for weight in weights] == [True, True, False]


def test_what_is_float32_or_quantises_its_inputs_is_not_copied() -> None:
    rng = np.random.default_rng(0)
    dense = random.weight(rng, 4, 8, CPU, "float32", bias=False)
    rounded = replace(random.weight(rng, 4, 8, CPU, "bfloat16", bias=False), activation="int8_token")
    stack = Weight("stack", (4, 8), {}, Weight.dequantize, parts=(rounded,))
    copies = Float32Copies(1 << 20)
    for weight in (dense, rounded, stack):
        copies.pack(weight)
        assert not weight.prepared


def test_a_stack_becomes_one_matrix(device: CpuDevice) -> None:
    rng = np.random.default_rng(0)
    parts = tuple(random.weight(rng, n, 16, CPU, "bfloat16", bias=False) for n in (5, 32))
    stack = Weight("stack", (37, 16), {}, Weight.dequantize, random.normal(rng, 37, device=CPU), parts=parts)
    ops, x = bind(device), random.normal(rng, 3, 16, device=CPU)
    before = ops.linear(x, stack)
    pack(ops, "linear", stack)
    assert torch.equal(ops.linear(x, stack), before)


def test_the_processors_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Chip 9\n")
    assert host_name(tmp_path / "cpuinfo") == "Chip 9"
    assert host_name(tmp_path / "missing")
    assert physical_cores() >= 1
